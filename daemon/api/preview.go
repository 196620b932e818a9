// SPDX-License-Identifier: Apache-2.0

package api

// Preview is the message that "metalplugd --preview" reads from standard input. Once all devices have been inspected, metalplugd
// writes the message back with the results. After that, metalplugd runs without a kubelet until standard input is closed.
type Preview struct {
	Dir        string      `json:"dir"`                  // absolute path of the directory for all files and sockets
	Recording  string      `json:"recording,omitempty"`  // path or bundled name of the recording to use in place of the configured source, or empty
	Containers []Container `json:"containers,omitempty"` // containers that request devices, in this order
}

// Container is one container's request for devices, together with the result.
type Container struct {
	Resource string `json:"resource"`
	Count    int    `json:"count"`
	Allocation
	Error string `json:"error,omitempty"` // why the container gets no device, or empty
}

// Allocation lists the devices, nodes and variables that a container gets.
type Allocation struct {
	Devices []string          `json:"devices"` // IDs of devices or of shares
	Env     map[string]string `json:"env"`
	Nodes   []GrantedNode     `json:"nodes"`
	CDI     []string          `json:"cdiDevices,omitempty"` // names of CDI devices, which replace the nodes
}

// GrantedNode is a device node in a container.
type GrantedNode struct {
	Container   string `json:"container"`
	Host        string `json:"host"`
	Permissions string `json:"permissions"`
}
