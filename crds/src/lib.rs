//! MuxTunnel and MuxBenchmark resource types.
