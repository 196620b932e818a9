// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"iter"
	"strings"
)

// tree finds subjects by sysfs path: the one at a path, those above it and those below it.
type tree struct {
	children map[string]*tree // by the next element of the path
	subject  *subject         // at this very path, or nil
}

// insert puts s at path.
func (t *tree) insert(path string, s *subject) {
	for element := range strings.SplitSeq(path, "/") {
		if t.children == nil {
			t.children = make(map[string]*tree)
		}
		next := t.children[element]
		if next == nil {
			next = &tree{}
			t.children[element] = next
		}
		t = next
	}
	t.subject = s
}

// remove takes away what is at path, and the branches that are empty then.
func (t *tree) remove(path string) {
	element, rest, more := strings.Cut(path, "/")
	next := t.children[element]
	if next == nil {
		return
	}
	if more {
		next.remove(rest)
	} else {
		next.subject = nil
	}
	if next.subject == nil && len(next.children) == 0 {
		delete(t.children, element)
	}
}

// at returns the subject at path, or nil.
func (t *tree) at(path string) *subject {
	for element := range strings.SplitSeq(path, "/") {
		if t = t.children[element]; t == nil {
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
			if branch = branch.children[element]; branch == nil {
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
