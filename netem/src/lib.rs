//! WAN emulation.
