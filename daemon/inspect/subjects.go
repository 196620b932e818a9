// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"iter"
	"slices"
	"strings"
)

// subjects is a list of subjects, sorted by sysfs path. All subjects below a path are therefore next to each other.
type subjects []*Subject

// find returns the index of the subject with the given path. If there is none, find returns the index where that subject can be
// inserted.
func (a subjects) find(path string) (n int, ok bool) {
	return slices.BinarySearchFunc(a, path, func(s *Subject, path string) int { return strings.Compare(s.udev.SysPath, path) })
}

// get returns the subject with the given path, or nil.
func (a subjects) get(path string) *Subject {
	if n, ok := a.find(path); ok {
		return a[n]
	}
	return nil
}

// insert adds a subject. The list must not contain a subject with the same path.
func (a *subjects) insert(s *Subject) {
	n, _ := a.find(s.udev.SysPath)
	*a = slices.Insert(*a, n, s)
}

// remove removes the subject with the given path.
func (a *subjects) remove(path string) {
	if n, ok := a.find(path); ok {
		*a = slices.Delete(*a, n, n+1)
	}
}

// related yields the subject with the given path and all subjects above and below this path.
func (a subjects) related(path string) iter.Seq[*Subject] {
	return func(yield func(*Subject) bool) {
		for end := range path {
			if path[end] == '/' {
				if s := a.get(path[:end]); s != nil && !yield(s) {
					return
				}
			}
		}
		if s := a.get(path); s != nil && !yield(s) {
			return
		}
		first, _ := a.find(path + "/")
		for _, s := range a[first:] {
			if !strings.HasPrefix(s.udev.SysPath, path+"/") || !yield(s) {
				return
			}
		}
	}
}
