// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"iter"
	"slices"
	"strings"
)

// tree finds subjects by sysfs path: the one at a path, those above it and those below it.
type tree struct {
	name     string   // the last element of the path
	children []*tree  // sorted by name; most have one, for which a map would be wasteful
	subject  *subject // at this very path, or nil
}

// find returns where the child of that name is, or would be.
func (t *tree) find(name string) (at int, ok bool) {
	return slices.BinarySearchFunc(t.children, name, func(c *tree, name string) int { return strings.Compare(c.name, name) })
}

// child returns the child of that name, or nil.
func (t *tree) child(name string) *tree {
	if at, ok := t.find(name); ok {
		return t.children[at]
	}
	return nil
}

// insert puts s at path.
func (t *tree) insert(path string, s *subject) {
	for element := range strings.SplitSeq(path, "/") {
		at, ok := t.find(element)
		if !ok {
			t.children = slices.Insert(t.children, at, &tree{name: element})
		}
		t = t.children[at]
	}
	t.subject = s
}

// remove takes away what is at path, and the branches that are empty then.
func (t *tree) remove(path string) {
	element, rest, more := strings.Cut(path, "/")
	at, ok := t.find(element)
	if !ok {
		return
	}
	next := t.children[at]
	if more {
		next.remove(rest)
	} else {
		next.subject = nil
	}
	if next.subject == nil && len(next.children) == 0 {
		t.children = slices.Delete(t.children, at, at+1)
	}
}

// at returns the subject at path, or nil.
func (t *tree) at(path string) *subject {
	for element := range strings.SplitSeq(path, "/") {
		if t = t.child(element); t == nil {
			return nil
		}
	}
	return t.subject
}

// related yields the subjects above path, at it and below it.
func (t *tree) related(path string) iter.Seq[*subject] {
	return func(yield func(*subject) bool) {
		branch := t
		for element := range strings.SplitSeq(path, "/") {
			if branch.subject != nil && !yield(branch.subject) {
				return
			}
			if branch = branch.child(element); branch == nil {
				return
			}
		}
		branch.all(yield)
	}
}

// all yields every subject in the tree; false if yield wanted no more.
func (t *tree) all(yield func(*subject) bool) bool {
	if t.subject != nil && !yield(t.subject) {
		return false
	}
	for _, child := range t.children {
		if !child.all(yield) {
			return false
		}
	}
	return true
}
