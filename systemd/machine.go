// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"os"
)

// machineVariable is the environment variable that contains the machine ID. The daemon needs it because the unit's sandbox hides
// /etc/machine-id.
const machineVariable = "METALPLUG_MACHINE_ID"

// application is metalplug's application ID for [MachineID], created with "systemd-id128 new".
var application = [16]byte{0xe4, 0xe8, 0xf5, 0x2b, 0xc2, 0xdb, 0x4d, 0x32, 0xa2, 0x50, 0xe0, 0xa6, 0x00, 0x65, 0x46, 0xcf}

// MachineID returns metalplug's ID for this machine, as 32 hexadecimal digits. MachineID derives it from machine-id(5) as
// sd_id128_get_machine_app_specific(3) does, so that the node's real ID stays private. The result is empty if the machine has no
// ID yet, or if METALPLUG_MACHINE_ID is set to an empty value.
func MachineID() string {
	text, passed := os.LookupEnv(machineVariable)
	if !passed {
		file, _ := os.ReadFile("/etc/machine-id") // if the file cannot be read, there is no ID
		text = string(bytes.TrimSpace(file))
	}
	machine, err := hex.DecodeString(text)
	if err != nil || len(machine) != len(application) { // in an operating system image, the file contains "uninitialized"
		return ""
	}
	mac := hmac.New(sha256.New, machine)
	mac.Write(application[:])
	id := mac.Sum(nil)[:len(application)]
	// The ID is a version 4 UUID (id128_make_v4_uuid in systemd, src/libsystemd/sd-id128/id128-util.c).
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return hex.EncodeToString(id)
}
