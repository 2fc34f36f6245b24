//! Schemas of the types that the operator's resources share with the configuration file.

use schemars::Schema;

/// Permits unknown fields in the schema of a struct: an API server drops them, and refuses a schema
/// that forbids them.
pub(crate) fn open(schema: &mut Schema) {
    schema.remove("additionalProperties");
}
