//! Labels, as Kubernetes recommends them (kubernetes.io, "Recommended Labels").

/// The name of the product.
pub const NAME: &str = "app.kubernetes.io/name";
/// On the operator's own objects: the Helm release. Children have no such label, because tools that
/// prune objects by it would remove them.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// The role of a child: `entry`, `exit`, ...
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// The tool that manages the object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The version of the product.
pub const VERSION: &str = "app.kubernetes.io/version";
/// The kind of the object that owns a child, or whose gateways use a Secret with keys.
pub const OWNER_KIND: &str = "muxtunnel.dev/kind";
/// The name of that object.
pub const OWNER_NAME: &str = "muxtunnel.dev/name";
