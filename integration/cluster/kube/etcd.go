// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// etcdReady limits the wait for the first election.
const etcdReady = 30 * time.Second

// etcdCommand returns the command of an etcd with one member that does not wait for the disk. If the machine crashes, etcd
// may lose data, but no test needs this data.
func etcdCommand() *cobra.Command {
	var dir, client, peer string
	command := &cobra.Command{
		Use:           "etcd",
		Short:         "Run one member of etcd without fsync",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return runEtcd(ctx, dir, client, peer)
		},
	}
	command.Flags().StringVar(&dir, "data-dir", "", "directory of the data")
	command.Flags().StringVar(&client, "listen", "", "URL for clients")
	command.Flags().StringVar(&peer, "peer", "", "URL for other members")
	return command
}

func runEtcd(ctx context.Context, dir, client, peer string) error {
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true
	to, err := url.Parse(client)
	if err != nil {
		return err
	}
	others, err := url.Parse(peer)
	if err != nil {
		return err
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*to}, []url.URL{*to}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*others}, []url.URL{*others}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	e, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(etcdReady):
		return errors.New("etcd is not ready")
	}
	select {
	case err := <-e.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}
