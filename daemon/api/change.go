// SPDX-License-Identifier: Apache-2.0

package api

// Change is the body of a request that changes a device. Each request uses only some of the fields.
type Change struct {
	Reason string `json:"reason,omitempty"`  // of a cordon, one line
	Login  string `json:"login,omitempty"`   // login name of the user who sends the request
	DryRun bool   `json:"dry_run,omitempty"` // of a reset or an adoption: only answer whether it would be refused
	Scrub  string `json:"scrub,omitempty"`   // of a reset, the method of an erasure instead; of an adoption, a method other than that of the resource
}

// Changed is a device after a change.
type Changed struct {
	Device
	Note string `json:"note,omitempty"` // the reason why nothing was changed, or empty
}
