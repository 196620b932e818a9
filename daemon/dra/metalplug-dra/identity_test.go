// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
			if got, flaw := describeIdentity(config, "a"); got != "acts as system:node:a, with a token" || flaw != "" {
				t.Errorf("%q, with the flaw %q", got, flaw)
			}
			// With an empty token, the unit must not restart forever.
			if err := os.Truncate(token, 0); err != nil || run([]string{"--kubeconfig=" + kubeconfig, "--token=" + token, "--node=n1"}, io.Discard, io.Discard) != exitConfig {
				t.Errorf("the driver did not refuse an empty token: %v", err)
			}
		})
	}
}

// The description of a token has what an operator must know to renew it in time. The flaw shows why the API server refuses the
// token. In the bubble, the clock of the node shows the year 2000.
func TestTokenIsDescribed(t *testing.T) {
	const account, wrong = "system:serviceaccount:metalplug:metalplug-dra", "the token is not bound to the Node b -> set --node, or create a token for this node"
	for payload, c := range map[string]struct{ node, user, want, flaw string }{
		`"exp": 1795000000, "kubernetes.io": {"node": {"name": "a"}}`: {"a", "", " until 2026-11-18 11:06:40Z or until the Node a is deleted", ""},
		`"exp": 900000000`:                         {"a", "", " until 1998-07-09 16:00:00Z", "the identity has expired, because the clock of this node shows 2000-01-01 00:00:00Z"},
		`"kubernetes.io": {"node": {"name": "a"}}`: {"b", "", " or until the Node a is deleted", wrong},
		`"kubernetes.io": {}`:                      {"b", account, "", wrong},
	} {
		synctest.Test(t, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "token")
			token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub": "`+account+`", `+payload+"}")) + ".c2lnbmF0dXJl"
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			got, flaw := describeIdentity(&rest.Config{BearerTokenFile: file, Impersonate: rest.ImpersonationConfig{UserName: c.user}}, c.node)
			if want := "acts as " + account + c.want + ", with a token"; got != want || flaw != c.flaw {
				t.Errorf("%q with the flaw %q, want %q with %q", got, flaw, want, c.flaw)
			}
		})
	}
}
