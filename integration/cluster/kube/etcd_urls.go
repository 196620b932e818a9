// SPDX-License-Identifier: Apache-2.0

//go:build !k8s131

package main

import (
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

// setURLs sets the URLs at which a member listens for clients and for other members.
func setURLs(config *embed.Config, client, peer []url.URL) {
	config.ListenClientUrls, config.AdvertiseClientUrls = client, client
	config.ListenPeerUrls, config.AdvertisePeerUrls = peer, peer
}
