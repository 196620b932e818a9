// SPDX-License-Identifier: Apache-2.0

package systemd

import "maps"

// MessageIDs returns the MESSAGE_ID of each line of the log that has one, by its message: all errors, and those after which
// somebody may have to do something, or wants to look for later. metalplug.catalog explains each (journalctl -x). An ID never
// changes and is never given to another message.
func MessageIDs() map[string]string { return maps.Clone(messageIDs) }

var messageIDs = map[string]string{
	"device gone":                 "50c3aca8cfca423d88ff5d8a8cdb4d3c",
	"device unhealthy":            "2774bd213f8242ab8f7f063ff22ce648",
	"device healthy":              "caf5bcd634a648fba81bc67dacdc5dc4",
	"endpoint registered":         "2d1c3a5af6294804bb4c959831d080ab",
	"device not cleared":          "6416535383164160a3baa06f76d5d71c",
	"device not initialised":      "f9b6d54050594137934011ab8f4d769b",
	"device allocated":            "4f2b62d0ff7740ce88676203b7da6b17",
	"device held":                 "5ef675b445514c3d93f1dc050e8f1fa7",
	"device started":              "b930c5f9076d49bdb67edbd4b278457a",
	"device released":             "33d589d62f364231942428929112c951",
	"device reset":                "abef9fad3d794b2bab6a0602e11fd97d",
	"device erased":               "649c222d4501429db98f392ebaa23967",
	"device unit run":             "b2e44977c2a1417f90d5e45d315dbcd9",
	"device cordoned":             "cf1cae115a77426dbb46a6547a06f0aa",
	"device uncordoned":           "bf6278dce6414693b34c0b0c8b92ade8",
	"container refused":           "356bbf0dc535496ba0b8e2450ba69587",
	"configuration not reloaded":  "3c89c7284d174cee9f2e4f2c814136c0",
	"identity claimed twice":      "a2e3ace6af8d41b691f89df39bec20d0",
	"state lost":                  "93a3c85c228a4784a39f984e43af8f16",
	"state not saved":             "ac2134dea7754c048907bba17da65cd2",
	"audit entries lost":          "94d4786251f64918aa03d2e855596fc0",
	"audit not kept":              "61668307d4cd41f9a7ff00164156cf9c",
	"CDI spec not written":        "bcd29dfebd1f4c0c80f2db70d1fd6f8c",
	"devices not enumerated":      "ee76bc3525fd41cbb3336fa8171d7644",
	"list too long":               "1adbdba2f62043e2a34835604e7daf0d",
	"no progress":                 "d1111a2104514f528a0cd3cdf4391c3c",
	"panic in a call":             "4779a08f55f347ab89b350bbaabaca61",
	"stopped":                     "0fd0f590fd2e4658baa7ae23404ac2be",
	"control socket not served":   "6e35eccdb1a04a45bafdbb70c8f8231d",
	"metrics not served":          "4048e3331cc44dc396a9542e206024e4",
	"directory hidden":            "e7fd944bb6034ab09ebad3a688c9d5ba",
	"evidence ended":              "fc3778b5045d48ba883285e8230bab1e",
	"adoption ended":              "716cea32f2fd4688a9b7a0bfdb174e07",
	"disk proven blank":           "3068dcbeed1c4009b1e27b5a71bad377",
	"disk holds data":             "fee4765bf5d04b888f692abf2fb04aac",
	"disk adopted":                "7e6372cb394a4081a1009be03dc5e472",
	"two disks have one identity": "cd6c51122e1e41ee89ef00a21a27d2f4",
	"disk not read":               "a25c49dfe34c4b5d9c81e9d721354397",
	"adopted disk not erased":     "5fb32570a1014d7facc955fc4379abe0",
	"resource held back":          "cb1c7b90fdee44c28bfb4cf2d6da833c",
}
