// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/textproto"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metalplug/metalplug/internal/fsutil"
)

// ErrNoAnswer means that metalplugd does not answer on its socket. The error that wraps ErrNoAnswer describes the cause.
var ErrNoAnswer = errors.New("metalplugd does not answer")

// Refused is metalplugd's answer to a request that it refuses.
type Refused struct {
	Code int    `json:"-"` // HTTP status code
	Text string `json:"error"`
}

// These HTTP status codes have a special meaning in a [Refused].
const (
	NotFound = 404 // no such device
	Busy     = 503 // hardware does not answer
)

// Error returns the answer's text.
func (r *Refused) Error() string { return r.Text }

// clientLimit is how long a client waits for an answer to start. metalplugd answers within this time even while it enumerates the
// devices of a large node.
const clientLimit = 30 * time.Second

// Client sends requests to the control socket with the path Socket. Client opens a new connection for each request, because a
// command sends only one or two requests. The methods are safe for concurrent use. An error is a [*Refused], wraps [ErrNoAnswer],
// or describes an invalid answer.
type Client struct {
	Socket string
}

// Get sends a GET request for a path and decodes the answer. Get blocks until the answer is complete or ctx ends.
func (c Client) Get(ctx context.Context, path string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, clientLimit)
	defer cancel()
	stream, err := c.ask(ctx, "GET", path, nil)
	return c.decode(stream, err, answer)
}

// Post sends a change, such as a [Change] or a [Claim], to a path and decodes the answer. Post blocks until the change is done or
// ctx ends.
func (c Client) Post(ctx context.Context, path string, change, answer any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	stream, err := c.ask(ctx, "POST", path, body)
	return c.decode(stream, err, answer)
}

// Stream sends a GET request for a path. The caller can read the answer from the result as it arrives. Reading ends when the
// caller closes the result or ctx ends.
func (c Client) Stream(ctx context.Context, path string) (io.ReadCloser, error) {
	return c.ask(ctx, "GET", path, nil)
}

// decode decodes an answer, unless err is not nil. decode rejects an answer without any known field, such as {} from another
// program, because every answer from metalplugd sets a field.
func (c Client) decode(stream io.ReadCloser, err error, answer any) error {
	if err != nil {
		return err
	}
	defer stream.Close()
	err = json.NewDecoder(stream).Decode(answer)
	if v := reflect.ValueOf(answer).Elem(); err == nil && v.Kind() == reflect.Struct && v.NumField() > 0 && v.IsZero() {
		err = errors.New("the answer has no known field")
	}
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w: %s", c.Socket, err, OtherVersion)
	}
	return nil
}

// OtherVersion explains to the user why the client may not understand an answer.
const OtherVersion = "metalplugd and this program have different versions, or the socket belongs to another program; after an upgrade: systemctl restart metalplugd"

// refusalSize is the maximum length of the text in a refusal, in bytes.
const refusalSize = 4 << 10

// body is the part of an answer after the header. Its Close method also closes the connection.
type body struct {
	io.Reader
	close func() error
}

// Close closes the connection.
func (b body) Close() error { return b.close() }

// ask sends a request on a new connection and returns the body of the answer, which the caller must close. If the status is not
// 200, ask returns an error with metalplugd's text. The protocol is HTTP/1.0, where the body ends when the connection ends.
// Package net/http is not used, because it would add TLS to the program.
func (c Client) ask(ctx context.Context, method, path string, content []byte) (io.ReadCloser, error) {
	// DialUnix does not add a DNS resolver to the program, but DialContext does.
	conn, err := new(net.Dialer).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: c.Socket, Net: "unix"})
	if err != nil {
		return nil, c.noAnswer(ctx, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	answer := body{bufio.NewReader(conn), func() error { stop(); return conn.Close() }}
	code, status, err := exchange(conn, answer.Reader.(*bufio.Reader), method, path, content)
	if err != nil {
		answer.Close()
		return nil, c.noAnswer(ctx, err)
	}
	if code == 200 {
		return answer, nil
	}
	defer answer.Close()
	refused := &Refused{Code: code}
	if err := json.NewDecoder(io.LimitReader(answer, refusalSize)).Decode(refused); err != nil || refused.Text == "" {
		refused.Text = status + ": " + OtherVersion
	}
	return nil, refused
}

// exchange sends a request and reads the header of the answer. The result status is the status code followed by its text.
func exchange(to io.Writer, from *bufio.Reader, method, path string, content []byte) (code int, status string, err error) {
	// The error is ignored, because metalplugd may refuse a request before it has read the whole request.
	_, _ = fmt.Fprintf(to, "%s %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", method, path, len(content), content)
	head := textproto.NewReader(from)
	line, err := head.ReadLine()
	if err != nil {
		return 0, "", err
	}
	if _, err := head.ReadMIMEHeader(); err != nil {
		return 0, "", err
	}
	version, status, _ := strings.Cut(line, " ")
	if !strings.HasPrefix(version, "HTTP/") {
		return 0, "", errors.New("not HTTP")
	}
	_, err = fmt.Sscan(status, &code)
	return code, status, err
}

// noAnswer returns an error that explains why there is no answer. noAnswer omits the text that the network packages add to the
// cause.
func (c Client) noAnswer(ctx context.Context, err error) error {
	var op *net.OpError
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
		return context.Canceled
	case ctx.Err() != nil:
		err = errors.New("no answer in time; see 'journalctl -u metalplugd'")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		err = errors.New("the socket does not exist")
	case errors.Is(err, unix.ECONNREFUSED):
		err = errors.New("no process listens on the socket, or the file is not a socket")
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w: use sudo, or join the group metalplug", fs.ErrPermission)
	case !errors.As(err, &op) || op.Op != "dial":
		err = errors.New("the connection was closed: metalplugd is stopping, or the socket belongs to another program")
	default:
		err = fsutil.Cause(err)
	}
	return fmt.Errorf("%w: %s: %w", ErrNoAnswer, c.Socket, err)
}
