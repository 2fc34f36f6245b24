module muxtunnel.dev/bench/lab/peers/go-http2

go 1.24
