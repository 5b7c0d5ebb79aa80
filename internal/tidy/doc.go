// Package tidy checks the repository's own rules that no compiler knows: which package may import
// which, which calls are banned, what a generated file carries, what no file may name.
//
// It is tests alone: TestRepository applies every rule to every file, and TestRulesCanFail proves
// of each that it finds what it is for. A new package, a new import or a new dependency is a line
// in the tables of arrows_test.go, so that a reviewer sees it.
//
// The files are read by this process itself, not by a subprocess such as go list, because the test
// cache only notices changes of files that the test opened.
package tidy
