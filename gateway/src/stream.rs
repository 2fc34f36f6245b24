//! The parts of one stream: buffers, pipes, bytes to write, and the log line of its end.

pub(crate) mod account;
pub(crate) mod batch;
pub(crate) mod buffers;
pub(crate) mod early_data;
pub(crate) mod inbox;
pub(crate) mod life;
pub(crate) mod local_stream;
pub(crate) mod packet;
pub(crate) mod pipe;
pub(crate) mod reassembly;
pub(crate) mod retained_pipe;
pub(crate) mod timeouts;
