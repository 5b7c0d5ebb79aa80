// Package misspelt finds what somebody meant: the known name that is most like the one that was written.
package misspelt

import "slices"

// most is how many letters of a name may be wrong before it is another word.
const most = 2

// Meant gives the one of names that is most like name, the first of several, with false if none is like it. A name
// with few letters must have fewer wrong.
func Meant(name string, names []string) (meant string, ok bool) {
	if len(names) == 0 {
		return "", false
	}
	meant = slices.MinFunc(names, func(a, b string) int { return Distance(name, a) - Distance(name, b) })
	return meant, Distance(name, meant) <= min(most, len(name)/2)
}

// Distance is how many letters must be changed, added or removed to make b of a.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
