// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
)

const (
	// maxShares is the maximum value of the key shares. With this many shares, a list of 50 devices fits into the 4 MiB that the
	// kubelet accepts (82 bytes for each share). A share number has at most three digits, and [device.MakeID] leaves room for
	// them.
	maxShares = 1000
	// maxStartTimeout is the maximum timeout before a start. maxStartTimeout is less than the 30 seconds that the kubelet allows
	// for PreStartContainer.
	maxStartTimeout = 25 * time.Second
	// eraseTimeout is the default timeout for erasing a disk when no container is waiting for it.
	eraseTimeout = time.Hour
)

// abilities lists the reset methods and the erase methods that a class supports, without the value none.
type abilities struct{ methods, scrubs []string }

// classAbilities maps class names to abilities. The methods are those that metalplug-reset implements for the class's devices.
// The helper refuses a method if the device's driver would stop working after the reset.
var classAbilities = map[string]abilities{
	device.GPUName:        {methods: []string{"pci", "vfio"}},
	device.FPGAName:       {methods: []string{"dfl-port", "pci", "vfio"}},
	device.InfiniBandName: {methods: []string{"pci"}},
	device.NVMeName: {
		methods: []string{"nvme-controller", "pci", "vfio"},
		scrubs:  []string{"discard", "zero", "format", "crypto-erase", "sanitize"},
	},
	device.NodeName: {methods: []string{"pci", "vfio"}, scrubs: []string{"discard", "zero"}},
}

// classNames lists all class names, in the order of [device.Classes].
var classNames = []string{
	device.GPUName, device.FPGAName, device.InfiniBandName, device.NVMeName, device.NodeName, device.BundleName,
}

// Scrubs returns the methods that a resource can use to erase disks.
func Scrubs() []string { return slices.Clone(classAbilities[device.NVMeName].scrubs) }

// resource reads one [[resource]] table.
func resource(t *table) Resource {
	r := Resource{
		Shares: 1, Prefer: Packed, Inject: InjectNodes, Permissions: "rw",
		Reset: ResourceReset{Method: Auto, Scrub: None, When: WhenStart, Timeout: 20 * time.Second},
	}
	t.checked("name", &r.Name, checkName)
	t.require("name", "the name by which pods request the devices")
	takeClass(t, &r)
	if takeBundle(t, &r); r.Class == device.BundleName {
		r.Reset.Method = None
		takeAPI(t, &r)
		return r
	}
	r.Match = takePairs(t.table("match"), checkProperty, checkPattern)
	r.Exclude = takePairs(t.table("exclude"), checkProperty, checkPattern)
	r.Env = takePairs(t.table("env"), checkVariable, checkTemplate)
	if r.Class == device.GPUName && r.Env[visibleGPUs] != "" {
		t.reportBelowf("env", visibleGPUs, "is set by metalplug, since another value would give a container the GPUs of other pods; remove it")
	}
	takeGroup(t, &r)
	if r.Class == device.NodeName && r.Group == nil {
		checkNarrow(t, r)
	}
	takeOffer(t, &r)
	takeAPI(t, &r)
	reset := t.table("reset")
	takeReset(reset, &r)
	checkExclusive(t, reset, r)
	// Auto has no effect if a reset would disturb other users of the device. Auto also has no effect for InfiniBand, because a
	// reset unbinds the drivers.
	if r.Reset.Method == Auto && (r.SharesUse() || r.Class == device.InfiniBandName) {
		r.Reset.Method = None
	}
	if r.Class != "" && reset.has("when") && r.Reset.When != WhenStart && !r.Reset.hasWork() {
		reset.reportf("when", "%s has no effect without a scrub or a method", r.Reset.When)
	}
	takeUnits(t.table("units"), &r.Units)
	return r
}

// takeAPI reads the keys that decide how the resource is offered to the kubelet.
func takeAPI(t *table, r *Resource) {
	t.boolean("takeover", &r.Takeover)
	api := ServePlugin
	if t.choice("serve", "kubelet API", &api, ServePlugin, ServeDRA); api == ServePlugin {
		return
	}
	r.Serve = api
	switch {
	case r.Class == device.BundleName:
		t.reportf("serve", `"dra" does not support bundles; serve the members through "dra", and let a claim ask for devices that are near each other`)
	case r.Takeover:
		t.reportf("takeover", `applies only to device plugins; write takeover = false or serve = "plugin"`)
	}
}

// checkNarrow reports a resource of class node that would match every device node. checkNarrow ignores a resource whose match or
// group is invalid.
func checkNarrow(t *table, r Resource) {
	_, isTable := t.value("match").(*table)
	nodes, isList := t.value("group").([]any)
	if len(r.Match) == 0 && (isTable || !t.has("match")) && (isList && len(nodes) == 0 || !t.has("group")) {
		t.reportf("match", `is empty: class %s would take every device node on this machine; write match = { DEVNAME = "/dev/kvm" } for one node`, r.Class)
	}
}

func takeClass(t *table, r *Resource) {
	if t.choice("class", "class", &r.Class, classNames...); t.has("class") {
		return // the search below for a remedy is slower than reading all files, so it must run only if it is needed
	}
	wanted := "a resource that overrides no other needs class " + Alternatives(classNames)
	for _, values := range builtin {
		switch name := values["name"].(string); {
		case r.Name == name:
			wanted = fmt.Sprintf("builtin is false; write class = \"%s\" and the other keys of %s", values["class"], name)
		case distance(strings.ToLower(r.Name), name) <= 2:
			wanted += "; for a built-in resource write " + quote(name)
		}
	}
	if t.has("members") {
		wanted = `members are for bundles; write class = "bundle"`
	}
	t.require("class", wanted)
}

// onlyFor reports a key that a resource's class does not support.
func (t *table) onlyFor(key string, class string, classes ...string) {
	if class == "" || slices.Contains(classes, class) {
		return
	}
	t.reportf(key, "is only for class %s, not for %s; remove it", Alternatives(classes), class)
}

// takePairs reads a table of strings. takePairs returns nil if the table is empty.
func takePairs(t *table, checkKey, checkValue func(string) error) map[string]string {
	if len(t.values) == 0 {
		return nil
	}
	pairs := make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		t.check(key, checkKey(key))
		var value string
		t.checked(key, &value, checkValue)
		pairs[key] = value
	}
	return pairs
}

// takeOffer reads the keys that decide what a container gets.
func takeOffer(t *table, r *Resource) {
	t.number("shares", 1, maxShares, &r.Shares)
	t.choice("prefer", "preference", &r.Prefer, Packed, Spread)
	t.choice("inject", "method of injection", &r.Inject, InjectNodes, InjectCDI)
	t.checked("cdi_kind", &r.CDIKind, checkCDIKind)
	if r.CDIKind != "" && r.Inject != InjectCDI {
		t.reportf("cdi_kind", `needs another key; write inject = "cdi" too`)
	}
	t.checked("permissions", &r.Permissions, checkPermissions)
	takeNodes(t, r)
	if t.boolean("allow_in_use", &r.AllowInUse); r.AllowInUse {
		t.onlyFor("allow_in_use", r.Class, device.NVMeName, device.NodeName)
	}
	takeManagement(t, r)
}

// takeManagement reads the keys for managing an InfiniBand fabric.
func takeManagement(t *table, r *Resource) {
	for _, key := range []string{"umad", "issm"} {
		asked := false
		if t.boolean(key, &asked); !asked {
			continue
		}
		r.Extras = append(r.Extras, key)
		t.onlyFor(key, r.Class, device.InfiniBandName)
	}
	switch {
	case !slices.Contains(r.Extras, "issm"):
	case len(r.Extras) == 1:
		t.reportf("issm", "requires umad, which a subnet manager uses to send packets; write umad = true too")
	case r.Shares > 1:
		t.reportf("issm", "can be open in only one container, but shares = %d; write shares = 1", r.Shares)
	}
}

// takeNodes reads the key nodes, which selects the device nodes of NVMe namespaces.
func takeNodes(t *table, r *Resource) {
	nodes := device.NVMeBlock
	t.choice("nodes", "choice of nodes", &nodes, device.NVMeBlock, device.NVMeGeneric, device.NVMeBoth)
	if nodes == device.NVMeBlock {
		return
	}
	r.Nodes = nodes
	t.onlyFor("nodes", r.Class, device.NVMeName)
}

// takeReset reads [resource.reset].
func takeReset(t *table, r *Resource) {
	if r.Class != "" { // an invalid class has already been reported
		able, of := classAbilities[r.Class], " of class "+r.Class
		methods := append([]string{Auto, None}, able.methods...)
		if chosen, ok := t.value("method").(string); ok && isPCIReset(chosen) && slices.Contains(methods, "pci") {
			methods = append(methods, chosen)
		}
		t.choice("method", "method"+of, &r.Reset.Method, methods...)
		t.choice("scrub", "scrub"+of, &r.Reset.Scrub, append([]string{None}, able.scrubs...)...)
	}
	r.requireScrub(t)
	t.choice("when", "moment", &r.Reset.When, WhenStart, WhenRelease, WhenBoth)
	if r.Reset.Scrubs() && (r.Reset.When != WhenStart || r.Serve == ServeDRA) {
		r.Reset.Timeout = eraseTimeout
	}
	if t.duration("timeout", &r.Reset.Timeout) && r.Reset.When == WhenStart && r.Reset.Timeout > maxStartTimeout && r.Serve != ServeDRA {
		t.reportf("timeout", "%s is more than %s: the kubelet waits 30s for everything that precedes a start; only when = \"release\" allows more",
			r.Reset.Timeout, maxStartTimeout)
	}
}

// requireScrub reports a disk resource that does not specify how a pod's data is erased. There is no default, because only the
// operator can decide how to erase the data. A resource of class node may match disks on only some nodes. If that resource sets
// no scrub, it is valid, but metalplug does not offer its disks.
func (r *Resource) requireScrub(t *table) {
	if t.has("scrub") || r.Class != device.NVMeName && r.Class != device.NodeName {
		return
	}
	if r.Class == device.NVMeName || r.Match["SUBSYSTEM"] == "block" {
		t.require("scrub", "choose what happens to a pod's data before the next pod gets the disk: add [resource.reset] with scrub = \""+
			strings.Join(classAbilities[r.Class].scrubs, `", "`)+"\" or \"none\"; with \"none\" the disk is offered again only if the pod left it blank")
		return
	}
	r.Reset.ScrubUnset = true
}

// isPCIReset reports whether a method is "pci:" followed by a valid value of a PCI function's reset_method attribute
// (pci_reset_fn_methods, drivers/pci/pci.c). The helper checks which of these values the function supports.
func isPCIReset(method string) bool {
	way, ok := strings.CutPrefix(method, "pci:")
	return ok && slices.Contains([]string{"device_specific", "acpi", "flr", "af_flr", "pm", "bus", "cxl_bus"}, way)
}

// checkExclusive reports settings that are invalid for a device that several users can share.
func checkExclusive(t, reset *table, r Resource) {
	if r.Reset.Scrubs() && r.Shares > 1 {
		reset.reportf("scrub", `%s would erase the data of other containers, because shares = %d%s; write shares = 1 or scrub = "none"`,
			r.Reset.Scrub, r.Shares, t.elsewhere("shares", reset.place("scrub")))
	}
	if r.Reset.Method != None && r.Reset.Method != Auto && r.Shares > 1 {
		reset.reportf("method", `%s would interrupt the other containers of the device, because shares = %d%s; write shares = 1 or method = "none"`,
			r.Reset.Method, r.Shares, t.elsewhere("shares", reset.place("method")))
	}
	if r.Serve == ServeDRA && r.Shares > 1 && len(classAbilities[r.Class].scrubs) > 0 && !r.Reset.ScrubUnset {
		t.reportf("shares", `claims cannot share disks, but shares = %d; write shares = 1 or serve = "plugin", or remove scrub if there is no disk`, r.Shares)
	}
	if r.Reset.Scrubs() && r.AllowInUse {
		t.reportf("allow_in_use", `would let %s erase disks that this host uses; write false, or scrub = "none"`, r.Reset.Scrub)
	}
}

// takeUnits reads [resource.units].
func takeUnits(t *table, u *Units) {
	t.checked("init", &u.Init, checkUnit)
	t.checked("start", &u.Start, checkUnit)
	t.checked("release", &u.Release, checkUnit)
}
