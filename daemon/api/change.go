// SPDX-License-Identifier: Apache-2.0

package api

// Change is the body of a request that changes a device. Each type of request uses only some of the fields.
type Change struct {
	Reason string `json:"reason,omitempty"`  // reason for a cordon, on one line, or empty for [Unexplained]
	Login  string `json:"login,omitempty"`   // login name of the user who sent the request
	DryRun bool   `json:"dry_run,omitempty"` // check whether metalplugd would accept the reset or adoption, and change nothing
	// Scrub is the erase method. A reset erases the disk only if Scrub is set. If Scrub is set for an adoption, it replaces the
	// resource's erase method.
	Scrub string `json:"scrub,omitempty"`
}

// ChangedDevice is the state of a device after a change.
type ChangedDevice struct {
	Device
	Note string `json:"note,omitempty"` // why nothing was changed, or empty
}
