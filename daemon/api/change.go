// SPDX-License-Identifier: Apache-2.0

package api

// Change is the body of a request that changes a device. Each request uses only some of the fields.
type Change struct {
	Reason string `json:"reason,omitempty"`  // reason for a cordon, one line
	Login  string `json:"login,omitempty"`   // login name of the user who sends the request
	DryRun bool   `json:"dry_run,omitempty"` // only check whether the reset or adoption would be refused
	Scrub  string `json:"scrub,omitempty"`   // for a reset, the method with which to erase the disk instead; for an adoption, a method that replaces the resource's
}

// Changed is a device after a change.
type Changed struct {
	Device
	Note string `json:"note,omitempty"` // the reason why nothing was changed, or empty
}
