// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/metalplug/metalplug/daemon/api"
)

// identity reads a kubeconfig. A token replaces the identity of the kubeconfig, and impersonates user if that is not empty.
// The rate is raised, because 10,000 devices have 157 ResourceSlices. At the default rate, writing them would take half a
// minute.
func identity(file, token, user string) (*rest.Config, error) {
	kubeconfig, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: file}).Load()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var overrides clientcmd.ConfigOverrides
	if token != "" {
		if _, err := os.ReadFile(token); err != nil {
			return nil, fmt.Errorf("read the token: %w", err)
		}
		// The user of the kubeconfig is not used, because it may name files that only the kubelet can read. client-go reads
		// the token file again every minute.
		kubeconfig.AuthInfos["token"] = &clientapi.AuthInfo{TokenFile: token, Impersonate: user}
		overrides.Context.AuthInfo = "token"
	}
	config, err := clientcmd.NewDefaultClientConfig(*kubeconfig, &overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent = 100, 200, "metalplug-dra/"+version
	config.ContentType = "application/vnd.kubernetes.protobuf"
	return config, nil
}

// described returns a text with the user of an identity and when it ends, for systemd's status line and the journal. It checks
// nothing, because only the API server can.
func described(c *rest.Config) string {
	if c.BearerTokenFile != "" {
		return describedToken(c.BearerTokenFile, c.Impersonate.UserName)
	}
	files := rest.CopyConfig(c)  // if c had the content of its files, client-go would not notice a renewed certificate
	_ = rest.LoadTLSFiles(files) // a connection reports the error
	if chain, err := cert.ParseCertsPEM(files.CertData); err == nil {
		return fmt.Sprintf("acts as %s until %s, with a certificate", chain[0].Subject.CommonName, chain[0].NotAfter.UTC().Format(api.TimeFormat))
	}
	return "acts as the user of the kubeconfig"
}

// describedToken is like described, for the token in a file.
func describedToken(file, user string) string {
	var claims struct { // RFC 7519, section 4.1, and pkg/serviceaccount/claims.go of Kubernetes
		Sub     string
		Exp     int64                                // seconds since 1970
		Cluster struct{ Node struct{ Name string } } `json:"kubernetes.io"`
	}
	token, _ := os.ReadFile(file) // identity has read it
	if parts := strings.Split(string(token), "."); len(parts) == 3 {
		payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_ = json.Unmarshal(payload, &claims) // other tokens than those of Kubernetes have another form
	}
	text := "acts as " + cmp.Or(user, claims.Sub, "the user of the token")
	if claims.Exp != 0 {
		text += " until " + time.Unix(claims.Exp, 0).UTC().Format(api.TimeFormat)
	}
	if name := claims.Cluster.Node.Name; name != "" {
		text += " or until the Node " + name + " is deleted"
	}
	return text + ", with a token"
}
