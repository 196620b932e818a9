// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"reflect"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/device"
)

// request is one with everything in it.
func request() Request {
	return Request{
		Do: Prepare, SysPath: disk0, Class: "nvme", Identity: identity("wwid", "eui.01", "device/serial", "S 1 2"),
		Resource: "example.org/nvme", Method: "nvme-controller", Scrub: "format", Tenant: true, ByHand: true,
		Fingerprint: "0123456789abcdef:000102030405060708090a0b0c0d0e0f", From: 4096,
		Together: []string{controller0 + "/nvme0n2"}, Pods: []string{"0c1d"}, TimeoutMS: 90000,
	}
}

const requestText = `{"do":"prepare","sysPath":"/sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0/nvme0n1","class":"nvme",` +
	`"identity":[{"name":"wwid","value":"eui.01"},{"name":"device/serial","value":"S 1 2"}],"resource":"example.org/nvme",` +
	`"method":"nvme-controller","scrub":"format","tenant":true,"byHand":true,` +
	`"fingerprint":"0123456789abcdef:000102030405060708090a0b0c0d0e0f","from":4096,` +
	`"together":["/sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0/nvme0n2"],"pods":["0c1d"],"timeoutMs":90000}`

func TestRequestOnTheWire(t *testing.T) {
	if got := string(request().Encode()); got != requestText {
		t.Errorf("Encode:\n%s\nwant:\n%s", got, requestText)
	}
	got, err := ParseRequest([]byte(requestText))
	if err != nil || !reflect.DeepEqual(got, request()) {
		t.Errorf("ParseRequest = %+v, %v", got, err)
	}
	least := Request{Do: Probe, SysPath: "/sys/devices/x", Class: "node", TimeoutMS: 1}
	if got, err := ParseRequest(least.Encode()); err != nil || !reflect.DeepEqual(got, least) {
		t.Errorf("ParseRequest = %+v, %v", got, err)
	}
}

// TestMalformedRequest refuses a request that is cut short, too large, of another version or of impossible values. Nothing is
// done.
func TestMalformedRequest(t *testing.T) {
	m, _ := oneNVMe(t)
	replaced := func(old, new string) string { return strings.Replace(requestText, old, new, 1) }
	for name, c := range map[string]struct{ message, want string }{
		"nothing":            {"", "EOF"},
		"null":               {"null", `do "": must be one of [look probe offer survey prepare]`},
		"an unknown field":   {replaced(`"tenant"`, `"leftover"`), `unknown field "leftover"`},
		"no such op":         {replaced("prepare", "erase"), `do "erase": must be one of`},
		"no such class":      {replaced(`"class":"nvme"`, `"class":"tape"`), `class "tape": there is none`},
		"no time":            {replaced("90000", "0"), "timeoutMs 0: must be from 1 to 172800000"},
		"too much time":      {replaced("90000", "172800001"), "timeoutMs 172800001: must be from 1 to 172800000"},
		"a negative byte":    {replaced("4096", "-1"), "from -1: must not be negative"},
		"more after the end": {requestText + "x", "bytes after the JSON value"},
		"many identities":    {replaced(`[{"name"`, "["+strings.Repeat(`{"name":"a","value":"b"},`, 127)+`{"name"`), "129 entries of identity, 1 of together"},
		"many others":        {replaced(`["/sys`, "["+strings.Repeat(`"/sys/devices/x",`, 128)+`"/sys`), "2 entries of identity, 129 of together"},
		"many pods":          {replaced(`["0c1d"`, "["+strings.Repeat(`"p",`, 128)+`"p"`), "129 of pods"},
		"a path with ..":     {replaced("/nvme0n1", "/../nvme0n1"), "must be absolute, without empty parts"},
		"a path with //":     {replaced(`nvme0/nvme0n2"`, `nvme0//nvme0n2"`), "must be absolute"},
		"a relative path":    {replaced(`"/sys/devices/pci`, `"sys/devices/pci`), "must be absolute"},
		"no fingerprint":     {replaced("0123456789abcdef:", "0123456789abcdef"), "must be blank, or as a probe has reported it"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseAnswer(m.reply(t.Context(), 0, []byte(c.message)))
			if err != nil || got.Result != Malformed || !strings.Contains(got.Detail, c.want) {
				t.Errorf("answer is %+v, %v; want %q", got, err, c.want)
			}
		})
	}
	m.untouched()
}

func TestAnswerOnTheWire(t *testing.T) {
	a := Answer{
		Result: Running, Detail: "ask again", Content: "ext4", Fingerprint: "ab:cd", Claimed: true, Done: "much",
		Smart: device.Smart{Known: true, Warning: 4, Used: 101, Spare: 99, Temperature: -5, MediaErrors: 1 << 63}, Size: 8192, Read: 4096, Erased: true, Appearance: "9",
	}
	got, err := ParseAnswer(a.Encode())
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("ParseAnswer = %+v, %v\nwant %+v", got, err, a)
	}
	if got := string(Answer{Result: OK}.Encode()); got != `{"result":"ok"}` {
		t.Errorf("the least answer is %s", got)
	}
}

func TestAnswersAlwaysArrive(t *testing.T) {
	a := Answer{Result: Failed, Detail: "two\nlines\x00\xff" + strings.Repeat("ä", 5000)}
	got, err := ParseAnswer(a.Encode())
	if err != nil || !strings.HasPrefix(got.Detail, "two?lines??ä") || len(got.Detail) < maxText-2 {
		t.Errorf("ParseAnswer = %+v, %v", got, err)
	}
}

// FuzzRequest parses requests. A parsed request is within its bounds, and parses to the same when it is written again.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(requestText))
	f.Add(Request{Do: Probe, SysPath: "/sys/devices/x", Class: "gpu", TimeoutMS: 1}.Encode())
	f.Add([]byte(`{"do":"survey","OP":"probe","sysPath":"/","class":"node","timeoutMs":1e3}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		r, err := ParseRequest(message)
		if err != nil {
			return
		}
		if again, err := ParseRequest(r.Encode()); err != nil || string(again.Encode()) != string(r.Encode()) {
			t.Errorf("%q is written as %q: %v", message, r.Encode(), err)
		}
		if r.Timeout() <= 0 || r.Timeout() > maxTimeout || r.From < 0 || len(r.Identity) > MaxList || len(r.Together) > MaxList || r.SysPath == "" {
			t.Errorf("%q gives %+v", message, r)
		}
	})
}
