package mgmt

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/mgmt/api"
)

// Bounds of a page.
const (
	pageSizeDefault = 100
	pageSizeMax     = 500
	maxPattern      = 1 << 10 // bytes of ?name=
)

// list answers with the items that the query asks for, of T made by view from an S with the parts that are needed. name
// gives what ?name= filters by; nil for lists that have no such filter. all is the list's own, to be sorted in place.
func list[S, T any](r *request, all []S, name func(*S) string, view func(*S, parts) T) error {
	total := len(all)
	if pattern := r.query("name"); pattern != "" && name != nil {
		keep, err := nameFilter(r, pattern)
		if err != nil {
			return err
		}
		kept := make([]S, 0, len(all))
		for i := range all {
			if keep(name(&all[i])) {
				kept = append(kept, all[i])
			}
		}
		all = kept
	}
	reverse := false
	switch r.query("sort_reverse") {
	case "", "false":
	case "true":
		reverse = true
	default:
		return badRequest("sort_reverse is neither true nor false")
	}
	n := len(all)
	page, size, from, to := 1, n, 0, n
	if r.has("page") {
		var err error
		if page, size, err = r.pageOf(); err != nil {
			return err
		}
		if from = min((page-1)*size, n+1); from > n { // the page behind a full last one is empty
			return failed(400, "page_out_of_range", fmt.Sprintf("Page out of range, page: %d page size: %d, len: %d", page, size, n))
		}
		to = min(from+size, n)
	}
	if field := r.query("sort"); field != "" {
		all = sortBy(all, field, reverse, to, view)
	} else if reverse {
		slices.Reverse(all)
	}
	columns := parseColumns(r.query("columns"))
	need := partsOf[T](columns)
	whole := func(item *S) T { return view(item, need) }
	if !r.has("page") {
		return r.items(encodeList(nil, all, whole, columns))
	}
	p := api.Page[T]{
		TotalCount: total, FilteredCount: n, ItemCount: to - from, Page: page, PageSize: size,
		PageCount: (n + size - 1) / size, Items: make([]T, to-from),
	}
	for i := range p.Items {
		p.Items[i] = whole(&all[from+i])
	}
	return r.page(p)
}

// plain answers with a list that has no pages and no filter.
func plain[T any](r *request, items []T) error {
	if field := r.query("sort"); field != "" {
		items = sortBy(items, field, r.query("sort_reverse") == "true", len(items), func(item *T, _ parts) T { return *item })
	}
	return r.items(encodeList(nil, items, itself, parseColumns(r.query("columns"))))
}

// itself is the view of what is shown as it is.
func itself[T any](item *T) T { return *item }

// items answers with a list.
func (r *request) items(list []byte) error { return r.send(fasthttp.StatusOK, list) }

// page answers with a page: the columns are those of its items.
func (r *request) page(p any) error {
	var c columns
	if items := parseColumns(r.query("columns")); items != nil {
		c = columns{"items": items}
		for _, k := range [...]string{"total_count", "item_count", "filtered_count", "page", "page_size", "page_count"} {
			c[k] = nil
		}
	}
	return r.send(fasthttp.StatusOK, encode(nil, p, c))
}

func (r *request) pageOf() (page, size int, err error) {
	invalid := failed(400, "bad_request", "Pagination parameters are invalid")
	page, e := strconv.Atoi(r.query("page"))
	if e != nil {
		return 0, 0, invalid
	}
	size, shown := pageSizeDefault, "undefined"
	if r.has("page_size") {
		shown = r.query("page_size")
		if size, e = strconv.Atoi(shown); e != nil {
			return 0, 0, invalid
		}
	}
	if page < 1 || page > 1<<30 || size < 1 || size > pageSizeMax {
		return 0, 0, failed(400, "invalid_pagination_parameters",
			fmt.Sprintf("Invalid pagination parameters: page number %d, page size %s", page, shown))
	}
	return page, size, nil
}

// nameFilter is ?name= as a substring, or with use_regex=true as a regular expression.
func nameFilter(r *request, pattern string) (func(string) bool, error) {
	if len(pattern) > maxPattern {
		return nil, badRequestf("name filter is longer than %d bytes", maxPattern)
	}
	if r.query("use_regex") == "true" {
		re, err := regexp.Compile("(?i)" + pattern)
		if err != nil {
			return nil, badRequest("Pagination parameters are invalid")
		}
		return re.MatchString, nil
	}
	pattern = strings.ToLower(pattern)
	return func(s string) bool { return strings.Contains(strings.ToLower(s), pattern) }, nil
}
