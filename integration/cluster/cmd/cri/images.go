// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// images is the ImageService of a node that already has every image.
type images struct {
	api.UnimplementedImageServiceServer
}

func (images) ListImages(context.Context, *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	return &api.ListImagesResponse{}, nil
}

func (images) ImageStatus(_ context.Context, req *api.ImageStatusRequest) (*api.ImageStatusResponse, error) {
	name := req.GetImage().GetImage()
	return &api.ImageStatusResponse{Image: &api.Image{Id: name, RepoTags: []string{name}, Size: 1, Spec: &api.ImageSpec{Image: name}}}, nil
}

func (images) PullImage(_ context.Context, req *api.PullImageRequest) (*api.PullImageResponse, error) {
	return &api.PullImageResponse{ImageRef: req.GetImage().GetImage()}, nil
}

func (images) ImageFsInfo(context.Context, *api.ImageFsInfoRequest) (*api.ImageFsInfoResponse, error) {
	usage := []*api.FilesystemUsage{{
		Timestamp: time.Now().UnixNano(), FsId: &api.FilesystemIdentifier{Mountpoint: "/var"},
		UsedBytes: &api.UInt64Value{}, InodesUsed: &api.UInt64Value{},
	}}
	return &api.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}
