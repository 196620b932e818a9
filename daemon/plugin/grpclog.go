// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"io"
	"log/slog"

	"google.golang.org/grpc/grpclog"
)

// LogTo makes gRPC write its errors to log, at the level debug. It would write them to standard error otherwise and wait
// for its reader. An error that matters is an error of a call, too. LogTo is for a program that has called nothing of
// gRPC yet.
func LogTo(log *slog.Logger) {
	lines := slog.NewLogLogger(log.Handler(), slog.LevelDebug).Writer()
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, lines))
}
