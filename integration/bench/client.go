// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// patience is the maximum time to wait for anything.
const patience = 30 * time.Second

// rawCodec does not decode messages, so the measured time ends with the arrival of their bytes.
type rawCodec struct{}

// Marshal encodes a message.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	text, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(text)}, err
}

// Unmarshal stores the bytes.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Name returns the name of the usual codec.
func (rawCodec) Name() string { return "proto" }

// list is an undecoded ListAndWatch message.
type list struct {
	raw []byte
	at  time.Time
}

// healthy returns the number of healthy devices in the list.
func (l list) healthy() int { return bytes.Count(l.raw, []byte(pluginapi.Healthy)) }

// unhealthy returns the number of unhealthy devices in the list.
func (l list) unhealthy() int { return bytes.Count(l.raw, []byte(pluginapi.Unhealthy)) }

// client connects to a plugin like the kubelet, and has one open stream.
type client struct {
	conn  *grpc.ClientConn
	lists chan list
	stop  context.CancelFunc
}

// connect opens the stream of the plugin at a socket.
func connect(path string) (*client, error) {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, pluginapi.DevicePlugin_ListAndWatch_FullMethodName,
		grpc.ForceCodecV2(rawCodec{}))
	if err == nil {
		err = errors.Join(stream.SendMsg(&pluginapi.Empty{}), stream.CloseSend())
	}
	if err != nil {
		cancel()
		return nil, errors.Join(err, conn.Close())
	}
	c := &client{conn: conn, lists: make(chan list, 1024), stop: cancel}
	go c.receive(stream)
	return c, nil
}

func (c *client) receive(stream grpc.ClientStream) {
	defer close(c.lists)
	for {
		var l list
		if err := stream.RecvMsg(&l.raw); err != nil {
			return
		}
		l.at = time.Now()
		c.lists <- l
	}
}

func (c *client) close() {
	c.stop()
	c.conn.Close()
}

// waitList returns the first list that meets a condition, and the number of lists received.
func (c *client) waitList(what string, wanted func(list) bool) (l list, lists int, err error) {
	limit := time.After(patience)
	for {
		select {
		case l, ok := <-c.lists:
			if !ok {
				return list{}, lists, fmt.Errorf("wait for %s: the stream has ended", what)
			}
			if lists++; wanted(l) {
				return l, lists, nil
			}
		case <-limit:
			return list{}, lists, fmt.Errorf("wait for %s: not within %v, after %d lists", what, patience, lists)
		}
	}
}

// floorServer is a minimal plugin. It sends the same list each time wait returns.
type floorServer struct {
	pluginapi.UnimplementedDevicePluginServer
	list *pluginapi.ListAndWatchResponse
	wait func() error
}

// ListAndWatch sends the list at once and after each wait.
func (s floorServer) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		if err := stream.Send(s.list); err != nil {
			return err
		}
		if err := s.wait(); err != nil {
			return err
		}
	}
}

// serve serves it at a socket. It returns a client, and a function that ends both.
func (s floorServer) serve(dir string) (*client, func(), error) {
	path := filepath.Join(dir, "floor.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, err
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, s)
	go server.Serve(l) // returns when the server is stopped
	c, err := connect(path)
	if err != nil {
		server.Stop()
		return nil, nil, err
	}
	return c, func() {
		c.close()
		server.Stop()
	}, nil
}
