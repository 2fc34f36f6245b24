//! Sans-IO core of the mux: codecs, sessions, streams, credit.
