package route

import (
	"bytes"
	"slices"
	"strings"
)

// topicIndex matches patterns of words separated by dots: "*" stands for one word, "#" for any
// number of words, none included. Empty words count; the empty key has no words at all.
//
// Patterns form a trie with a word on each edge, so a bind or unbind costs its words, however
// many bindings there are. The trie is read as an automaton, one word of the key at a time, with
// all nodes that the words so far lead to as its state. A node is in the state at most once, so
// a match costs at most words x nodes, whatever "#"s the patterns hold.
type topicIndex[Q comparable] struct {
	root topicNode[Q]
}

// fewWords is how many children a node holds in a list before it takes a map.
const fewWords = 8

type topicNode[Q comparable] struct {
	few  []topicChild[Q] // children by word, nil when there are many
	many map[string]*topicNode[Q]
	star *topicNode[Q] // child by "*"
	hash *topicNode[Q] // child by "#"
	leaf *bucket[Q]    // of the patterns that end here, nil if none does
}

type topicChild[Q comparable] struct {
	word string
	node *topicNode[Q]
}

func (x *topicIndex[Q]) add(b *binding[Q]) {
	n := &x.root
	if b.id.key != "" {
		word, rest, more := strings.Cut(b.id.key, ".")
		n = n.grow(word)
		for more {
			word, rest, more = strings.Cut(rest, ".")
			n = n.grow(word)
		}
	}
	if n.leaf == nil {
		n.leaf = &bucket[Q]{}
	}
	n.leaf.add(b.id.dst)
}

func (x *topicIndex[Q]) remove(b *binding[Q]) {
	if b.id.key == "" {
		x.root.drop(b.id.dst)
		return
	}
	x.root.prune(b.id.key, b.id.dst)
}

// prune removes dst from the pattern below n and every node that is of no use any more.
func (n *topicNode[Q]) prune(words string, dst *node[Q]) {
	word, rest, more := strings.Cut(words, ".")
	c := n.child(word)
	if more {
		c.prune(rest, dst)
	} else {
		c.drop(dst)
	}
	if c.leaf == nil && c.star == nil && c.hash == nil && len(c.few) == 0 && len(c.many) == 0 {
		n.cutOff(word)
	}
}

func (n *topicNode[Q]) drop(dst *node[Q]) {
	n.leaf.remove(dst)
	if n.leaf.empty() {
		n.leaf = nil
	}
}

// child finds the child by a pattern's word, nil if there is none.
func (n *topicNode[Q]) child(word string) *topicNode[Q] {
	switch word {
	case "*":
		return n.star
	case "#":
		return n.hash
	}
	if n.many != nil {
		return n.many[word]
	}
	for i := range n.few {
		if n.few[i].word == word {
			return n.few[i].node
		}
	}
	return nil
}

// literal finds the child by a key's word, in which "*" and "#" mean themselves and therefore
// match no more than the wildcards of the same spelling do.
func (n *topicNode[Q]) literal(word []byte) *topicNode[Q] {
	if n.many != nil {
		return n.many[string(word)]
	}
	for i := range n.few {
		if n.few[i].word == string(word) {
			return n.few[i].node
		}
	}
	return nil
}

// grow finds or makes the child by a pattern's word.
func (n *topicNode[Q]) grow(word string) *topicNode[Q] {
	if c := n.child(word); c != nil {
		return c
	}
	c := &topicNode[Q]{}
	switch {
	case word == "*":
		n.star = c
	case word == "#":
		n.hash = c
	case n.many != nil:
		n.many[word] = c
	case len(n.few) < fewWords:
		n.few = append(n.few, topicChild[Q]{word, c})
	default:
		n.many = make(map[string]*topicNode[Q], 2*fewWords)
		for _, f := range n.few {
			n.many[f.word] = f.node
		}
		n.many[word] = c
		n.few = nil
	}
	return c
}

func (n *topicNode[Q]) cutOff(word string) {
	switch {
	case word == "*":
		n.star = nil
	case word == "#":
		n.hash = nil
	case n.many != nil:
		delete(n.many, word)
	default:
		n.few = slices.DeleteFunc(n.few, func(c topicChild[Q]) bool { return c.word == word })
	}
}

// topicState is a router's scratch space: the automaton's state between two words.
type topicState[Q comparable] struct {
	now, next []*topicNode[Q] // nodes reached by a word or "*", good for this position alone
	// Nodes reached by "#". They take any further word, so once here they stay.
	hashes  []*topicNode[Q]
	hashSet map[*topicNode[Q]]struct{} // the same, from indexed nodes on
}

func (x *topicIndex[Q]) match(w *walk[Q]) bool {
	matched := false
	for _, key := range w.keys {
		if x.matchKey(w, &w.topic, key) {
			matched = true
		}
	}
	return matched
}

func (x *topicIndex[Q]) matchKey(w *walk[Q], s *topicState[Q], key []byte) bool {
	s.now, s.hashes = s.now[:0], s.hashes[:0]
	if len(s.hashSet) > 0 {
		clear(s.hashSet)
	}
	s.now = append(s.now, &x.root)
	s.follow(&x.root)
	for more := len(key) > 0; more; {
		var word []byte
		word, key, more = bytes.Cut(key, dot)
		s.next = s.next[:0]
		for _, n := range s.now {
			s.step(n, word)
		}
		for _, n := range s.hashes {
			s.step(n, word)
		}
		for _, n := range s.next {
			s.follow(n)
		}
		s.now, s.next = s.next, s.now
	}
	matched := false
	for _, nodes := range [...][]*topicNode[Q]{s.now, s.hashes} {
		for _, n := range nodes {
			if n.leaf != nil {
				w.take(n.leaf)
				matched = true
			}
		}
	}
	return matched
}

var dot = []byte{'.'}

// step adds the nodes that word leads to from n. Each has one parent and, among the nodes in
// next, one way to it, so none comes twice.
func (s *topicState[Q]) step(n *topicNode[Q], word []byte) {
	if c := n.literal(word); c != nil {
		s.next = append(s.next, c)
	}
	if n.star != nil {
		s.next = append(s.next, n.star)
	}
}

// follow adds the "#" nodes that no word at all leads to from n. Those that follow one that was
// reached before were reached with it.
func (s *topicState[Q]) follow(n *topicNode[Q]) {
	for h := n.hash; h != nil && !contains(&s.hashSet, s.hashes, h); h = h.hash {
		s.hashes = append(s.hashes, h)
	}
}

// forget drops every reference, so that a router at rest keeps no removed exchange alive.
func (s *topicState[Q]) forget() {
	clear(s.now[:cap(s.now)])
	clear(s.next[:cap(s.next)])
	clear(s.hashes[:cap(s.hashes)])
	clear(s.hashSet)
	if cap(s.now) > keepScratch || cap(s.next) > keepScratch || cap(s.hashes) > keepScratch {
		*s = topicState[Q]{}
	}
}
