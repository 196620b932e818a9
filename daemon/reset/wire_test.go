// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

// request is one with everything in it.
func request() Request {
	return Request{
		Op: Erase, SysPath: disk0, Class: "nvme", Identity: []Attribute{{"wwid", "eui.01"}, {"device/serial", "S 1 2"}},
		Method: "format", Leftover: true, Offered: true, Follow: true, Print: 1<<64 - 1, Together: []string{controller0 + "/nvme0n2"}, Timeout: 90 * time.Second,
	}
}

const requestText = `metalplug-reset 1
op erase
syspath /sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0/nvme0n1
class nvme
method format
leftover yes
offered yes
follow yes
print 18446744073709551615
timeout 90000
identity wwid eui.01
identity device/serial S 1 2
together /sys/devices/pci0000:00/0000:00:1d.0/0000:02:00.0/nvme/nvme0/nvme0n2
end
`

func TestRequestOnTheWire(t *testing.T) {
	if got := string(request().Encode()); got != requestText {
		t.Errorf("Encode:\n%s\nwant:\n%s", got, requestText)
	}
	got, err := ParseRequest([]byte(requestText))
	if err != nil || !reflect.DeepEqual(got, request()) {
		t.Errorf("ParseRequest = %+v, %v", got, err)
	}
	least := Request{Op: Probe, SysPath: "/sys/devices/x", Class: "node", Timeout: time.Millisecond}
	if got, err := ParseRequest(least.Encode()); err != nil || !reflect.DeepEqual(got, least) {
		t.Errorf("ParseRequest = %+v, %v", got, err)
	}
}

func TestParseRequestRefuses(t *testing.T) {
	replaced := func(old, new string) string { return strings.Replace(requestText, old, new, 1) }
	for name, c := range map[string]struct{ message, want string }{
		"nothing":            {"", "it ends within a line"},
		"another version":    {replaced("reset 1", "reset 2"), `"metalplug-reset 2" is not "metalplug-reset 1"`},
		"no such op":         {replaced("op erase", "op eat"), `op "eat" is none of [probe reset erase]`},
		"no such class":      {replaced("class nvme", "class tape"), `class "tape" is none of`},
		"another order":      {replaced("op erase\nsyspath", "syspath"), `no "op"`},
		"a bool":             {replaced("leftover yes", "leftover 1"), `leftover "1" is none of [yes no]`},
		"no time":            {replaced("90000", "0"), `timeout "0" is no number from 1 to 172800000`},
		"too much time":      {replaced("90000", "999999999999999999999"), "is no number"},
		"another number":     {replaced("90000", "+90000"), "it is not in its plain form"},
		"a lone name":        {replaced("wwid eui.01", "wwid"), "it is not in its plain form"},
		"a control":          {replaced("eui.01", "eui\x00"), "control characters in identity"},
		"a carriage return":  {replaced("format\n", "format\r\n"), "control characters in method"},
		"cut off":            {requestText[:len(requestText)-1], "it ends within a line"},
		"more after the end": {requestText + "x", "1 bytes after its end"},
		"a long value":       {replaced("eui.01", strings.Repeat("x", 1024)), "identity has 1029 bytes, at most 1024 are possible"},
		"many lines":         {replaced("identity", strings.Repeat("identity a b\n", 200)+"identity"), "202 lines of identity"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseRequest([]byte(c.message))
			if !errors.Is(err, errMessage) || !strings.Contains(err.Error(), c.want) || !reflect.DeepEqual(got, Request{}) {
				t.Errorf("ParseRequest = %+v, %v; want an error with %q", got, err, c.want)
			}
		})
	}
}

func TestAnswerOnTheWire(t *testing.T) {
	a := Answer{
		Result: Running, Detail: "ask again", Content: "ext4", Print: 1<<64 - 1, Claimed: true, Done: "much", Methods: []string{"zero", "pci:flr"},
		Smart:    Smart{true, 4, 101, 99, 10, -5, 1 << 63},
		Progress: Progress{42, 7 * time.Minute}, Took: 1234 * time.Microsecond,
	}
	got, err := ParseAnswer(a.Encode())
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("ParseAnswer = %+v, %v\nwant %+v", got, err, a)
	}
}

func TestAnswersAlwaysArrive(t *testing.T) {
	a := Answer{Result: Failed, Detail: "two\nlines\x00" + strings.Repeat("x", 5000)}
	got, err := ParseAnswer(a.Encode())
	want := Answer{Result: Failed, Detail: "two?lines?" + strings.Repeat("x", valueSize-10)}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseAnswer = %+v, %v", got, err)
	}
}

func TestAnswerErr(t *testing.T) {
	if err := (Answer{Result: OK, Detail: "ignored"}).Err(); err != nil {
		t.Errorf("Err of what went well is %v", err)
	}
	err := Answer{Result: Busy, Detail: "nvme0n1 is mounted"}.Err()
	if !errors.Is(err, Busy) || errors.Is(err, Refused) || err.Error() != "busy: nvme0n1 is mounted" {
		t.Errorf("Err is %v", err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(requestText))
	f.Add(Request{Op: Probe, Class: "gpu", Timeout: time.Second}.Encode())
	f.Fuzz(func(t *testing.T, message []byte) {
		r, err := ParseRequest(message)
		if err == nil && string(r.Encode()) != string(message) {
			t.Errorf("%q is written as %q", message, r.Encode())
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(Answer{Result: OK, Methods: []string{"zero"}, Smart: Smart{Known: true}}.Encode())
	f.Add(Answer{Result: Malformed, Detail: "x"}.Encode())
	f.Fuzz(func(t *testing.T, message []byte) {
		a, err := ParseAnswer(message)
		if err == nil && string(a.Encode()) != string(message) {
			t.Errorf("%q is written as %q", message, a.Encode())
		}
	})
}
