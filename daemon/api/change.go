// SPDX-License-Identifier: Apache-2.0

package api

// Change is the body of a request that changes a device. Which field counts depends on the request.
type Change struct {
	Reason string `json:"reason,omitempty"` // of a cordon, for people, on one line
	Login  string `json:"login,omitempty"`  // of who has logged in where the request comes from; for people too
	Scrub  string `json:"scrub,omitempty"`  // of a reset: erase the device too, by this method; of an adoption: by another than its resource's
}

// Changed is a device after a change.
type Changed struct {
	Device
	Note string `json:"note,omitempty"` // that there was nothing to change, or empty
}
