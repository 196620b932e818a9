// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
)

// server is an API server that answers each request with this code.
type server int

func (s server) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(s)}, nil
}

// If there is a token, the driver uses it as its identity. The kubeconfig then needs no user, and may name files that only
// the kubelet can read.
func TestTokenReplacesTheUser(t *testing.T) {
	for name, user := range map[string]string{
		"no user":   "",
		"a user":    "{name: kubelet, user: {client-certificate: /nonexistent/kubelet.pem, client-key: /nonexistent/kubelet.pem}}",
		"same name": "{name: token, user: {username: admin, password: secret}}",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			token, kubeconfig := filepath.Join(dir, "token"), filepath.Join(dir, "kubeconfig")
			for file, text := range map[string]string{token: "secret", kubeconfig: `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
users: [` + user + `]
contexts: [{name: x, context: {cluster: c, user: kubelet}}]
current-context: x
`} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			used, refused := make(chan struct{}, 1), new(atomic.Bool)
			config, err := identity(kubeconfig, token, "system:node:a", used, refused)
			if err != nil {
				t.Fatal(err)
			}
			if config.BearerTokenFile != token || config.Impersonate.UserName != "system:node:a" || config.CertFile != "" || config.Username != "" {
				t.Errorf("got the identity %+v, want the token that acts as system:node:a", config)
			}
			for _, code := range []int{http.StatusUnauthorized, http.StatusNotFound} {
				_, _ = config.WrapTransport(server(code)).RoundTrip(&http.Request{})
				<-used // the driver reads the token again
				if refused.Load() != (code == http.StatusUnauthorized) {
					t.Errorf("after the answer %d, the identity is refused: %v", code, refused.Load())
				}
			}
			if got, want := described(config), "acts as system:node:a, with a token"; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// The description of a token has what an operator must know to renew it in time.
func TestTokenIsDescribed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	const payload = `{"aud": ["x"], "exp": 1795000000, "kubernetes.io": {"namespace": "metalplug", "node": {"name": "a", "uid": "1"}}, "sub": "system:serviceaccount:metalplug:metalplug-dra"}`
	token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2lnbmF0dXJl"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "acts as system:serviceaccount:metalplug:metalplug-dra until 2026-11-18 11:06:40Z or until the Node a is deleted, with a token"
	if got := described(&rest.Config{BearerTokenFile: file}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
