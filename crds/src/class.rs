//! [`MuxClass`]: the settings that an administrator makes for many objects.

use k8s_openapi::api::core::v1::LocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use muxtunnel_gateway_config::named;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with_macros::{apply, skip_serializing_none};

use crate::{Template, Tuning, patterns, rules};

/// Settings of an administrator for the objects that name the class: images, pods and permitted
/// features. Without `className`, an object has the class with `default`.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[kube(
    group = "muxtunnel.dev",
    version = "v1alpha1",
    kind = "MuxClass",
    plural = "muxclasses",
    shortname = "mc",
    category = "mux",
    status = "MuxClassStatus",
    derive = "PartialEq",
    doc = "Settings of an administrator for the objects that name the class: images, pods and permitted features. Without `className`, an object has the class with `default`.",
    validation = rules::class_name()
)]
#[serde(rename_all = "camelCase")]
// Two operators would otherwise write the same gateways.
#[x_kube(validation = rules::immutable("controllerName", "MuxClass"))]
pub struct MuxClassSpec {
    /// The operator that serves the class: the value of its flag `--controller-name`, which is
    /// muxtunnel.dev/operator unless the chart changes it. Immutable.
    #[schemars(length(min = 1, max = 253), regex(pattern = patterns::CONTROLLER_NAME))]
    pub controller_name: String,
    /// Whether objects without `className` have this class. With two such classes, the operator does
    /// not accept these objects, and leaves their gateways unchanged. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// The namespaces whose objects may have the class. Default: from All.
    pub namespaces: Option<ClassNamespaces>,
    /// The images of the pods. Default: the images of the operator's own version.
    pub images: Option<ClassImages>,
    /// When the kubelet pulls the images. Default: IfNotPresent.
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Secrets of the object's namespace with which the kubelet pulls images, in addition to those of
    /// the templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Settings of the gateways' pods. The template of an object is merged over this template: the
    /// object adds and replaces keys of maps, and replaces lists and other fields. The keys of
    /// `metadata` need no permission.
    pub template: Option<Template>,
    /// Kernel settings of the gateways' pods of objects without `tuning`.
    pub tuning: Option<Tuning>,
    /// What objects of the class may request beyond the common fields. Default: nothing.
    pub permitted: Option<Permitted>,
    /// The trust domain TD of SPIFFE IDs in certificates of `issuerRef`:
    /// spiffe://TD/ns/NAMESPACE/KIND/NAME/END, where KIND is the short name of the kind. Default:
    /// cluster.local.
    #[schemars(length(min = 1, max = 255), regex(pattern = patterns::TRUST_DOMAIN))]
    pub trust_domain: Option<String>,
    /// How the operator rolls out a change of the class or of the operator.
    pub rollout: Option<Rollout>,
}

/// The namespaces whose objects may have a class.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::selector_of_namespaces())]
pub struct ClassNamespaces {
    /// All: every namespace. Selector: the namespaces that `selector` selects.
    pub from: NamespacesFrom,
    /// The labels of the namespaces, with Selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Which namespaces may use a class. All: every namespace. Selector: the namespaces with the labels of
/// `selector`.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NamespacesFrom {
    /// Every namespace.
    #[default]
    All,
    /// The namespaces with the labels of `selector`.
    Selector,
}

/// Images of pods. The chart's value `admissionPolicy.repositories` lists the permitted repositories.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ClassImages {
    /// The image of gateways. Default: the image of the operator's own version.
    #[schemars(length(min = 1, max = 512), regex(pattern = patterns::IMAGE))]
    pub gateway: Option<String>,
    /// The image of the emulation of a wide-area network. Default: the image of the operator's own
    /// version.
    #[schemars(length(min = 1, max = 512), regex(pattern = patterns::IMAGE))]
    pub wan: Option<String>,
    /// The image of benchmarks. Default: the image of the operator's own version.
    #[schemars(length(min = 1, max = 512), regex(pattern = patterns::IMAGE))]
    pub bench: Option<String>,
}

named! {
    /// When the kubelet pulls an image. Always: at each start of a container. IfNotPresent: if the node
    /// does not have the image. Never: the node must have the image. Default: IfNotPresent.
    #[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ImagePullPolicy {
        /// At each start of a container.
        Always = "Always",
        /// If the node does not have the image.
        #[default]
        IfNotPresent = "IfNotPresent",
        /// The node must have the image.
        Never = "Never",
    }
}

/// What objects of a class may request. An object cannot override this.
#[apply(crate = "serde_with_macros", Vec => #[serde(default, skip_serializing_if = "Vec::is_empty")])]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Permitted {
    /// WANEmulation: `wanEmulation`, whose container has NET_ADMIN. Network: `network`, whose init
    /// container has NET_ADMIN and MKNOD. UnsafeSysctls: `tuning.allowUnsafe`. Default: none.
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "set"))]
    pub features: Vec<Feature>,
    /// Keys of labels and annotations that the templates of objects may set: NAME, PREFIX/NAME, or
    /// PREFIX/* for every name with this prefix. A label can make the pods endpoints of another
    /// Service. By labels and annotations, other controllers add images, volumes and networks to
    /// pods. Default: no keys.
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 317), regex(pattern = patterns::METADATA_KEY)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub pod_metadata_keys: Vec<String>,
    /// Names of CSI drivers whose volumes may have the certificates of gateways (`csi`), such as
    /// spiffe.csi.cert-manager.io. The object sets the attributes of the volume. Permit only drivers
    /// that write files, and whose attributes give no access to other data and to names of others.
    /// Default: no drivers.
    #[schemars(
        length(max = 8),
        inner(length(min = 1, max = 63), regex(pattern = patterns::CSI_DRIVER)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub csi_drivers: Vec<String>,
}

named! {
    /// A feature that needs a permission. WANEmulation: the field `wanEmulation`. Network: the field
    /// `network`. UnsafeSysctls: the field `tuning.allowUnsafe`.
    #[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Feature {
        /// The field `wanEmulation`.
        WanEmulation = "WANEmulation",
        /// The field `network`.
        Network = "Network",
        /// The field `tuning.allowUnsafe`.
        UnsafeSysctls = "UnsafeSysctls",
    }
}

/// How the operator rolls out a change of the class or of the operator.
#[skip_serializing_none]
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Objects of the class that roll at the same time. Default: 3.
    #[schemars(range(min = 1, max = 100))]
    pub max_concurrent: Option<u32>,
    /// What happens when the gateways of an object do not become ready. Default: Pause.
    pub on_failure: Option<OnFailure>,
}

/// What happens when the gateways of an object do not become ready. Pause: no further object rolls.
/// Continue: the next objects roll. Default: Pause.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// No further object rolls.
    #[default]
    Pause,
    /// The next objects roll.
    Continue,
}

/// The observed state of a class.
#[skip_serializing_none]
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MuxClassStatus {
    /// The generation of the spec that this status describes.
    pub observed_generation: Option<i64>,
    /// The condition RolledOut.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Number of objects of the class.
    pub objects: Option<ClassObjects>,
}

/// Number of objects of a class.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassObjects {
    /// All objects of the class.
    pub total: i32,
    /// Objects that run the images and the template of the class.
    pub current: i32,
}
