package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	commandLimit = 30 * time.Second
	// startLimit is for the first command: the driver may have to be compiled.
	startLimit = 2 * time.Minute
	// exitLimit is how long a driver may take to end once its stdin is closed.
	exitLimit = 10 * time.Second
	// maxReply bounds a line of the driver: four times the largest body and then some.
	maxReply = 64 << 20
)

// fields are those of a command, and of a result.
type fields map[string]any

// reply is one line of the driver.
type reply struct {
	ID     *int64       `json:"id"`
	OK     *bool        `json:"ok"`
	Result fields       `json:"result"`
	Error  *driverError `json:"error"`
}

type driverError struct {
	Kind    string `json:"kind"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *driverError) String() string { return fmt.Sprintf("%s %d: %s", e.Kind, e.Code, e.Message) }

// driver is a driver's process. Commands are given by one goroutine.
type driver struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	lines   chan []byte   // what it writes, line by line; closed when it closed stdout
	exited  chan struct{} // closed when the process is gone
	log     *logTail
	id      int64
	started bool // the first reply came
	broken  error
}

func startDriver(ctx context.Context, command, caFile string, log io.Writer) (*driver, error) {
	d := &driver{lines: make(chan []byte), exited: make(chan struct{}), log: &logTail{also: log}}
	d.cmd = exec.CommandContext(ctx, "sh", "-c", command)
	d.cmd.Env = append(os.Environ(), "FIREMQ_CA_FILE="+caFile)
	d.cmd.Stderr = d.log
	d.cmd.WaitDelay = time.Second
	ownGroup(d.cmd)
	in, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	d.in = in
	go func() {
		defer close(d.exited)
		defer close(d.lines)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxReply)
		for lines.Scan() {
			select {
			case d.lines <- bytes.Clone(lines.Bytes()):
			case <-ctx.Done():
			}
		}
		d.cmd.Wait()
	}()
	return d, nil
}

// command gives a command and waits for its reply. An error says how the driver broke the rules; it is of
// no use any more then.
func (d *driver) command(op string, args fields) (*reply, error) {
	if err := d.send(op, args); err != nil {
		return nil, err
	}
	return d.receive(op, commandLimit)
}

// send gives a command.
func (d *driver) send(op string, args fields) error {
	if d.broken != nil {
		return d.broken
	}
	d.id++
	line := fields{"id": d.id, "op": op}
	for k, v := range args {
		line[k] = v
	}
	b, err := json.Marshal(line)
	if err != nil {
		panic("BUG: conformance: a command that is no JSON: " + err.Error())
	}
	d.log.note("> ", b)
	switch _, err := d.in.Write(append(b, '\n')); {
	case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed):
		return d.fail(fmt.Errorf("%s: the driver ended", op))
	case err != nil:
		return d.fail(fmt.Errorf("%s: the driver does not read: %w", op, err))
	}
	return nil
}

// receive waits for the reply to the last command.
func (d *driver) receive(op string, limit time.Duration) (*reply, error) {
	if !d.started {
		limit = startLimit
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var line []byte
	select {
	case l, ok := <-d.lines:
		if !ok {
			return nil, d.fail(fmt.Errorf("%s: the driver ended", op))
		}
		line = l
	case <-timer.C:
		return nil, d.fail(fmt.Errorf("%s: no reply within %s", op, limit))
	}
	d.started = true
	d.log.note("< ", line)
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	var r reply
	if err := dec.Decode(&r); err != nil {
		return nil, d.fail(fmt.Errorf("%s: the reply is not a JSON object: %w: %.200s", op, err, line))
	}
	switch {
	case r.ID == nil || *r.ID != d.id:
		return nil, d.fail(fmt.Errorf("%s: the reply has not the id %d: %.200s", op, d.id, line))
	case r.OK == nil:
		return nil, d.fail(fmt.Errorf("%s: the reply has no ok: %.200s", op, line))
	case *r.OK && r.Result == nil:
		return nil, d.fail(fmt.Errorf("%s: the reply has no result: %.200s", op, line))
	case !*r.OK && (r.Error == nil || r.Error.Kind == ""):
		return nil, d.fail(fmt.Errorf("%s: the reply has no error with a kind: %.200s", op, line))
	case *r.OK:
		r.Error = nil
	}
	return &r, nil
}

// silent waits and fails if a reply comes meanwhile.
func (d *driver) silent(wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case l, ok := <-d.lines:
		if !ok {
			return d.fail(errors.New("the driver ended"))
		}
		return d.fail(fmt.Errorf("it replied already: %.200s", l))
	case <-timer.C:
		return nil
	}
}

func (d *driver) fail(err error) error {
	d.broken = err
	return err
}

// leave closes stdin and waits for the driver to end by itself.
func (d *driver) leave() error {
	d.in.Close()
	timer := time.NewTimer(exitLimit)
	defer timer.Stop()
	for {
		select {
		case l, ok := <-d.lines:
			if ok {
				return d.fail(fmt.Errorf("a line that no command asked for: %.200s", l))
			}
			<-d.exited
			if code := d.cmd.ProcessState.ExitCode(); code != 0 {
				return d.fail(fmt.Errorf("the driver ended with status %d", code))
			}
			return nil
		case <-timer.C:
			return d.fail(fmt.Errorf("the driver has not ended %s after its stdin", exitLimit))
		}
	}
}

// stop ends the driver, by force if need be.
func (d *driver) stop() {
	if d.leave() != nil {
		killGroup(d.cmd)
		for range d.lines {
		}
		<-d.exited
	}
}

// logTail keeps the last of what a driver and the runner said, and passes it on.
type logTail struct {
	also io.Writer // or nil

	mu  sync.Mutex
	buf []byte // guarded by mu
}

const keptLog = 2 << 10

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.also != nil {
		l.also.Write(p)
	}
	l.buf = append(l.buf, p...)
	if n := len(l.buf) - keptLog; n > 0 {
		l.buf = append(l.buf[:0], l.buf[n:]...)
	}
	return len(p), nil
}

// note logs a line of the conversation, shortened.
func (l *logTail) note(mark string, line []byte) {
	const most = 300
	text := append([]byte(mark), line[:min(len(line), most)]...)
	if len(line) > most {
		text = append(text, "..."...)
	}
	l.Write(append(text, '\n'))
}

func (l *logTail) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = l.buf[:0]
}

func (l *logTail) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}
