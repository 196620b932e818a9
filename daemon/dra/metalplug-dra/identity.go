// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/internal/liveness"
)

// identity reads a kubeconfig. If there is a token, the token replaces the identity in the kubeconfig. If a user is given, the
// token impersonates that user. identity raises the rate limit, because 10,000 devices need 157 ResourceSlices. At the default
// rate, it would take half a minute to write them. The parameters used and refused become fields of [transport].
func identity(file, token, user string, used chan<- struct{}, refused *atomic.Bool) (*rest.Config, error) {
	kubeconfig, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: file}).Load()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var overrides clientcmd.ConfigOverrides
	if token != "" {
		// Ignore the user in the kubeconfig, because it may name files that only the kubelet can read. client-go reads the token
		// file again for the first request after a minute.
		kubeconfig.AuthInfos["token"] = &clientapi.AuthInfo{TokenFile: token, Impersonate: user}
		overrides.Context.AuthInfo = "token"
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, &overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig and the token: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent = 100, 200, "metalplug-dra/"+version
	config.Wrap(func(t http.RoundTripper) http.RoundTripper { return transport{t, used, refused} })
	config.ContentType = "application/vnd.kubernetes.protobuf"
	return config, nil
}

// transport fills a channel after each request, because client-go may have read a renewed token or certificate for the request.
// transport also records whether the API server refused the last request's identity.
type transport struct {
	http.RoundTripper
	used    chan<- struct{}
	refused *atomic.Bool
}

// RoundTrip sends a request.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	defer liveness.Poke(t.used)
	answer, err := t.RoundTripper.RoundTrip(r)
	t.refused.Store(err == nil && answer.StatusCode == http.StatusUnauthorized)
	return answer, err
}

// describeIdentity returns a text for systemd's status line and the journal. The text names an identity's user and says when the
// identity expires. If the identity itself shows that it is not valid on this node, flaw is the reason. Otherwise, only the API
// server can check the identity.
func describeIdentity(c *rest.Config, node string) (text, flaw string) {
	if c.BearerTokenFile == "" {
		files := rest.CopyConfig(c)  // in c itself, the files' contents would hide a renewed certificate
		_ = rest.LoadTLSFiles(files) // a later connection reports the error
		if chain, err := cert.ParseCertsPEM(files.CertData); err == nil {
			until, flaw := expiry(chain[0].NotAfter)
			return "acts as " + chain[0].Subject.CommonName + until + ", with a certificate", flaw
		}
		return "acts as the user of the kubeconfig", ""
	}
	var claims struct { // RFC 7519, section 4.1, and pkg/serviceaccount/claims.go of Kubernetes
		Sub     string
		Exp     int64                                // seconds since 1970
		Cluster struct{ Node struct{ Name string } } `json:"kubernetes.io"`
	}
	token, _ := os.ReadFile(c.BearerTokenFile) // client-go reads the file and reports the error
	payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(string(token)+".", ".")[1])
	_ = json.Unmarshal(payload, &claims) // tokens that Kubernetes did not issue may have another form
	until, flaw := expiry(time.Unix(claims.Exp, 0))
	name := claims.Cluster.Node.Name
	if name != "" {
		until += " or until the Node " + name + " is deleted"
	}
	if name != node && strings.HasPrefix(claims.Sub, "system:serviceaccount:") && name+c.Impersonate.UserName != "" {
		flaw = cmp.Or(flaw, "the token is not bound to the Node "+node+" -> set --node, or create a token for this node")
	}
	return "acts as " + cmp.Or(c.Impersonate.UserName, claims.Sub, "the user of the token") + until + ", with a token", flaw
}

// expiry returns the time when an identity expires, and a flaw if this time has passed. A token without an expiry date has the
// Unix time 0.
func expiry(end time.Time) (until, flaw string) {
	if end.Unix() == 0 {
		return "", ""
	} else if now := time.Now(); now.After(end) {
		flaw = "the identity has expired, because the clock of this node shows " + now.UTC().Format(api.TimeFormat)
	}
	return " until " + end.UTC().Format(api.TimeFormat), flaw
}
