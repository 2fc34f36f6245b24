//! Error codes (RFC 9114, section 8.1; RFC 9204, section 6).

use quinn::VarInt;

pub(super) const NO_ERROR: VarInt = VarInt::from_u32(0x100);
pub(super) const STREAM_CREATION_ERROR: VarInt = VarInt::from_u32(0x103);
pub(super) const CLOSED_CRITICAL_STREAM: VarInt = VarInt::from_u32(0x104);
pub(super) const FRAME_UNEXPECTED: VarInt = VarInt::from_u32(0x105);
pub(super) const FRAME_ERROR: VarInt = VarInt::from_u32(0x106);
pub(super) const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
pub(super) const ID_ERROR: VarInt = VarInt::from_u32(0x108);
pub(super) const SETTINGS_ERROR: VarInt = VarInt::from_u32(0x109);
pub(super) const MISSING_SETTINGS: VarInt = VarInt::from_u32(0x10a);
pub(super) const REQUEST_REJECTED: VarInt = VarInt::from_u32(0x10b);
pub(super) const REQUEST_CANCELLED: VarInt = VarInt::from_u32(0x10c);
pub(super) const REQUEST_INCOMPLETE: VarInt = VarInt::from_u32(0x10d);
pub(super) const MESSAGE_ERROR: VarInt = VarInt::from_u32(0x10e);
pub(super) const CONNECT_ERROR: VarInt = VarInt::from_u32(0x10f);
pub(super) const QPACK_DECOMPRESSION_FAILED: VarInt = VarInt::from_u32(0x200);
pub(super) const QPACK_ENCODER_STREAM_ERROR: VarInt = VarInt::from_u32(0x201);
