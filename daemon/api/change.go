// SPDX-License-Identifier: Apache-2.0

package api

// Change is the body of a request that changes a device. Each kind of request uses only some of the fields.
type Change struct {
	Reason string `json:"reason,omitempty"`  // reason for a cordon, on one line
	Login  string `json:"login,omitempty"`   // login name of the user who sends the request
	DryRun bool   `json:"dry_run,omitempty"` // only check whether the reset or adoption would be refused
	// Scrub is the erase method. A reset with a scrub erases the disk. For an adoption, Scrub replaces the method of the
	// resource.
	Scrub string `json:"scrub,omitempty"`
}

// Changed is the state of a device after a change.
type Changed struct {
	Device
	Note string `json:"note,omitempty"` // reason why nothing was changed, or empty
}
