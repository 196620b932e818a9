// SPDX-License-Identifier: Apache-2.0

package reset_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

const controllerPath = "/sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0"

// request returns a request with all fields set.
func request() reset.Request {
	return reset.Request{
		Do:        reset.Prepare,
		Target:    device.Target{SysPath: controllerPath + "/nvme0n1", Class: "nvme", Identity: map[string]string{"wwid": "eui.01", "device/serial": "S 1 2"}, Fingerprint: "0123456789abcdef:000102030405060708090a0b0c0d0e0f", Together: []string{controllerPath + "/nvme0n2"}, Pods: []string{"0c1d"}},
		Work:      device.Work{Resource: "example.org/nvme", Method: "nvme-controller", Scrub: "format", Tenant: true, ByHand: true},
		From:      4096,
		TimeoutMS: 90000,
	}
}

const requestText = `{"do":"prepare","class":"nvme","sysPath":"/sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0/nvme0n1",` +
	`"identity":{"device/serial":"S 1 2","wwid":"eui.01"},` +
	`"fingerprint":"0123456789abcdef:000102030405060708090a0b0c0d0e0f",` +
	`"together":["/sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0/nvme0n2"],"pods":["0c1d"],` +
	`"resource":"example.org/nvme","method":"nvme-controller","scrub":"format","tenant":true,"byHand":true,"from":4096,"timeoutMs":90000}`

func TestRequestOnTheWire(t *testing.T) {
	if got := string(request().Encode()); got != requestText {
		t.Errorf("Encode:\n%s\nwant:\n%s", got, requestText)
	}
	got, err := reset.ParseRequest([]byte(requestText))
	if err != nil || !reflect.DeepEqual(got, request()) {
		t.Errorf("ParseRequest = %+v, %v", got, err)
	}
}

// TestMalformedRequest checks that the program does nothing for a request that is truncated, too large, from another
// version, or invalid.
func TestMalformedRequest(t *testing.T) {
	program := asChild(t, reset.Program).Peer
	replaced := func(old, new string) string { return strings.Replace(requestText, old, new, 1) }
	attributes := ""
	for i := range reset.MaxList - 1 {
		attributes += fmt.Sprintf(`"a%d":"b",`, i)
	}
	for name, c := range map[string]struct{ message, want string }{
		"null":               {"null", `do "": must be one of [look probe offer survey prepare]`},
		"an unknown field":   {replaced(`"tenant"`, `"leftover"`), `unknown field "leftover"`},
		"no such op":         {replaced("prepare", "erase"), `do "erase": must be one of`},
		"no such class":      {replaced(`"class":"nvme"`, `"class":"tape"`), `class "tape": no class has that name`},
		"no time":            {replaced("90000", "0"), "timeoutMs 0: must be from 1 to 172800000"},
		"too much time":      {replaced("90000", "172800001"), "timeoutMs 172800001: must be from 1 to 172800000"},
		"a negative byte":    {replaced("4096", "-1"), "from -1: must not be negative"},
		"more after the end": {requestText + "x", "bytes after the JSON value"},
		"many identities":    {replaced(`"wwid":`, attributes+`"wwid":`), "129 entries in identity, 1 in together"},
		"many others":        {replaced(`["/sys`, "["+strings.Repeat(`"/sys/devices/x",`, 128)+`"/sys`), "2 entries in identity, 129 in together"},
		"many pods":          {replaced(`["0c1d"`, "["+strings.Repeat(`"p",`, 128)+`"p"`), "129 in pods"},
		"no fingerprint":     {replaced("0123456789abcdef:", "0123456789abcdef"), "must be blank or a fingerprint from a probe"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := program.Ask(t.Context(), func() []byte { return []byte(c.message) })
			if err != nil {
				t.Fatal(err)
			}
			got, err := exchange.Decode[reset.Answer](text)
			if err != nil || got.Result != reset.Malformed || !strings.Contains(got.Detail, c.want) {
				t.Errorf("answer is %+v, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestAnswersAlwaysArrive(t *testing.T) {
	a := reset.Answer{Result: reset.Failed, Detail: "two\nlines\x00\xff" + strings.Repeat("ä", 5000)}
	got, err := exchange.Decode[reset.Answer](a.Encode())
	if err != nil || !strings.HasPrefix(got.Detail, "two lines \uFFFDä") || len(got.Detail) < 1022 {
		t.Errorf("Decode = %+v, %v", got, err)
	}
}

// FuzzRequest checks that a parsed request is within its limits. If it is encoded and parsed once more, the result must be
// the same.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(requestText))
	f.Add(reset.Request{Do: reset.Probe, Target: device.Target{SysPath: "/sys/devices/x", Class: "gpu"}, TimeoutMS: 1}.Encode())
	f.Add([]byte(`{"do":"survey","OP":"probe","sysPath":"/","class":"node","timeoutMs":1e3}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		r, err := reset.ParseRequest(message)
		if err != nil {
			return
		}
		if again, err := reset.ParseRequest(r.Encode()); err != nil || string(again.Encode()) != string(r.Encode()) {
			t.Errorf("%q is written as %q: %v", message, r.Encode(), err)
		}
		if r.Timeout() <= 0 || r.Timeout() > 48*time.Hour || r.From < 0 || len(r.Identity) > reset.MaxList || len(r.Together) > reset.MaxList {
			t.Errorf("%q gives %+v", message, r)
		}
	})
}
