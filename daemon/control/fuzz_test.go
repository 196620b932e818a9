// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/control"
)

// FuzzRequest sends requests as uid 0. Each answer must be readable. Only a POST that names a device may change it.
func FuzzRequest(f *testing.F) {
	for _, request := range []string{
		"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/resources HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/devices/node-A-widget HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/why?what=/dev/widget0 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/devices/node-A-widget/cordon HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{\"reason\":\"why\"}",
		"POST /v1/devices/node-A-widget/uncordon HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/devices/node-A-widget/reset HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n{\"scrub\":\"zero\"}",
		"POST /v1/devices/..%2f..%2fx/reset HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /v1/claims/u1/unprepare HTTP/1.1\r\nHost: x\r\n\r\n",
		"DELETE / HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	touched := false
	routes := start(f, machine(), claims, func(o *control.Options) {
		o.Foreign = func(map[string][]string) map[string]string { return nil }
		o.Adopt = func(context.Context, string, api.Change) (string, error) { touched = true; return "", nil }
		o.Reset = func(context.Context, string, api.Change) error { touched = true; return nil }
	}).server.Routes()
	f.Fuzz(func(t *testing.T, text []byte) {
		request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
		if err != nil {
			return // net/http answers this itself
		}
		request.RemoteAddr = "0" // root
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if strings.Contains(request.URL.Path, "events") {
			cancel() // without this, the events continue until the client disconnects
		}
		touched = false
		answer := httptest.NewRecorder()
		routes.ServeHTTP(answer, request.WithContext(ctx))
		if touched && (request.Method != http.MethodPost || !strings.Contains(request.URL.Path, "/reset")) {
			t.Errorf("%q touches a device", text)
		}
		if kind := answer.Header().Get("Content-Type"); kind == "application/json" {
			checkJSON(t, text, answer.Body)
		}
	})
}

// checkJSON checks that an answer is JSON, one value a line or a single value.
func checkJSON(t *testing.T, request []byte, body io.Reader) {
	t.Helper()
	for decoder := json.NewDecoder(body); ; {
		var value any
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("the answer to %q: %v", request, err)
		}
	}
}
