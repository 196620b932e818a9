// SPDX-License-Identifier: Apache-2.0

package control

import "net/http"

// Routes returns the handler of the control socket, for a test that sends requests without a connection.
func (s *Server) Routes() http.Handler { return http.MaxBytesHandler(s.routes(), maxBodyLen) }
