// go-http2 is a peer of muxgate that uses Go's net/http. It carries TCP in HTTP/2 CONNECT.
//
//	go-http2 exit LISTEN                 accepts CONNECTs, and dials their targets
//	go-http2 entry EXIT LISTEN=TARGET... forwards each connection to TARGET by a CONNECT at EXIT
//
// With -certificate FILE -key FILE -ca FILE -name NAME it uses mutual TLS 1.3, and NAME is the peer's name. Without these flags it uses h2c.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
)

var (
	certificate = flag.String("certificate", "", "file of the own certificate")
	key         = flag.String("key", "", "file of its key")
	ca          = flag.String("ca", "", "file of the authority of both ends")
	name        = flag.String("name", "", "the other end's name")
)

func main() {
	flag.Parse()
	secured, err := security()
	if err != nil {
		log.Fatal(err)
	}
	switch args := flag.Args(); {
	case len(args) == 2 && args[0] == "exit":
		log.Fatal(exit(args[1], secured))
	case len(args) > 2 && args[0] == "entry":
		log.Fatal(entry(args[1], args[2:], secured))
	default:
		log.Fatal("usage: go-http2 [FLAGS] exit LISTEN | entry EXIT LISTEN=TARGET...")
	}
}

// security returns the TLS configuration, or nil without TLS.
func security() (*tls.Config, error) {
	if *certificate == "" {
		return nil, nil
	}
	own, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + *ca)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{own},
		RootCAs:      authorities,
		ServerName:   *name,
		ClientCAs:    authorities,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
		NextProtos:   []string{"h2"},
	}, nil
}

func protocols(secured *tls.Config) *http.Protocols {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(secured == nil)
	protocols.SetHTTP2(secured != nil)
	return protocols
}

// The largest windows and frames that the documentation of net/http recommends for a proxy.
var options = &http.HTTP2Config{
	MaxReceiveBufferPerConnection: 64 << 20,
	MaxReceiveBufferPerStream:     16 << 20,
	MaxReadFrameSize:              1 << 20,
}

func exit(listen string, secured *tls.Config) error {
	connect := func(w http.ResponseWriter, r *http.Request) {
		target, err := net.Dial("tcp", r.Host)
		if r.Method != http.MethodConnect || err != nil {
			http.Error(w, "no tunnel", http.StatusBadGateway)
			return
		}
		defer target.Close()
		w.WriteHeader(http.StatusOK)
		control := http.NewResponseController(w)
		if control.Flush() != nil {
			return
		}
		go func() {
			if _, err := io.Copy(target, r.Body); err == nil {
				target.(*net.TCPConn).CloseWrite()
			} else {
				abort(target)
			}
		}()
		buffer := make([]byte, 256<<10)
		for {
			length, err := target.Read(buffer)
			if _, wrong := w.Write(buffer[:length]); wrong != nil || control.Flush() != nil {
				return
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				panic(http.ErrAbortHandler) // the peer gets a RST_STREAM
			}
		}
	}
	server := http.Server{
		Addr:      listen,
		Handler:   http.HandlerFunc(connect),
		Protocols: protocols(secured),
		HTTP2:     options,
		TLSConfig: secured,
	}
	if secured != nil {
		return server.ListenAndServeTLS("", "")
	}
	return server.ListenAndServe()
}

func entry(exit string, forwards []string, secured *tls.Config) error {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, exit)
	}
	transport := &http.Transport{
		DialContext:     dial,
		Protocols:       protocols(secured),
		HTTP2:           options,
		TLSClientConfig: secured,
	}
	scheme := "http"
	if secured != nil {
		scheme = "https"
	}
	ended := make(chan error)
	for _, forward := range forwards {
		listen, target, _ := strings.Cut(forward, "=")
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return err
		}
		go func() {
			for {
				client, err := listener.Accept()
				if err != nil {
					ended <- err
					return
				}
				go tunnel(transport, client, scheme, target)
			}
		}()
	}
	return <-ended
}

func tunnel(transport *http.Transport, client net.Conn, scheme, target string) {
	defer client.Close()
	sends := &body{Conn: client, ended: make(chan struct{})}
	request := &http.Request{
		Method:        http.MethodConnect,
		URL:           &url.URL{Scheme: scheme, Host: target},
		Host:          target,
		Header:        http.Header{},
		Body:          sends,
		ContentLength: -1,
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		log.Print(err)
		abort(client)
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		abort(client)
		return
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{client}, answer.Body, make([]byte, 256<<10)); err != nil {
		abort(client)
		return
	}
	client.(*net.TCPConn).CloseWrite()
	<-sends.ended
}

// body is the data of the client. The transport closes the body at the end of the request.
type body struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

func (b *body) Close() error {
	b.once.Do(func() { close(b.ended) })
	return nil
}

// abort closes the connection with a RST.
func abort(conn net.Conn) {
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}
