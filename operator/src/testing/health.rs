//! The health that Argo CD shows for an object, by the script in the chart's files.

use mlua::{Lua, LuaSerdeExt};
use serde_json::Value;

/// Runs the script for the kind of `object` as Argo CD does: with the object in the variable `obj`. The
/// health and its message.
pub(crate) fn health(object: &Value) -> (String, String) {
    let text = include_str!("../../../charts/muxtunnel/files/argocd-cm.yaml");
    let patch: Value = serde_yaml::from_str(text).unwrap();
    let kind = object["kind"].as_str().unwrap();
    let key = format!("resource.customizations.health.muxtunnel.dev_{kind}");
    let script = patch["data"][&key].as_str();
    let script = script.unwrap_or_else(|| panic!("no health of a {kind}"));
    let lua = Lua::new();
    // As in Argo CD, absent fields are nil.
    let options = mlua::serde::SerializeOptions::new()
        .serialize_none_to_null(false)
        .serialize_unit_to_null(false);
    let object = lua.to_value_with(object, options).unwrap();
    lua.globals().set("obj", object).unwrap();
    let found: mlua::Table = lua.load(script).set_name(key).eval().unwrap();
    (found.get("status").unwrap(), found.get("message").unwrap())
}
