//! Labels, as Kubernetes recommends them (kubernetes.io, "Recommended Labels").

/// The name of the product.
pub const NAME: &str = "app.kubernetes.io/name";
/// The object that owns a child; for the operator's own objects, the Helm release.
pub const INSTANCE: &str = "app.kubernetes.io/instance";
/// The role of a child: `entry`, `exit`, ...
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// The tool that manages the object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The version of the product.
pub const VERSION: &str = "app.kubernetes.io/version";
/// On a Secret with keys: the name of the object whose gateways use it. The label `INSTANCE` is
/// absent there, because tools that prune objects by it would remove an identity.
pub const TUNNEL: &str = "muxtunnel.dev/name";
