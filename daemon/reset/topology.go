// SPDX-License-Identifier: Apache-2.0

package reset

// Which NVMe namespaces a request hits; see package sysfs for how they hang together.

import (
	"path"
	"slices"
)

// controllersOf returns the sysfs paths of the controllers that reach a namespace.
func (h *host) controllersOf(sysPath string) ([]string, error) {
	if !h.IsNVMe(sysPath) {
		return nil, errorf(Refused, "%s is no NVMe namespace", sysPath)
	}
	controllers := h.NVMeControllers(sysPath)
	if len(controllers) == 0 {
		return nil, errorf(Gone, "no controller reaches %s", sysPath)
	}
	return controllers, nil
}

// namespacesOf returns the disks behind controllers. A namespace without a disk, such as one of key-value pairs, is
// [Refused]: nobody can tell whether it is used.
func (h *host) namespacesOf(controllers []string) (disks []string, err error) {
	for _, c := range controllers {
		found, without := h.NVMeNamespaces(c)
		if len(without) > 0 {
			return nil, errorf(Refused, "whether %s, which has no disk, is used cannot be told", path.Base(without[0]))
		}
		disks = append(disks, found...)
	}
	slices.Sort(disks)
	return slices.Compact(disks), nil
}

// vouched checks that every disk that will be hit is the request's own or one that it lists.
func (r Request) vouched(hit []string) error {
	for _, d := range hit {
		if d != r.SysPath && !slices.Contains(r.Together, d) {
			return errorf(Refused, "%s would be hit too: nobody vouches that no pod has it", path.Base(d))
		}
	}
	return nil
}
