//! The class of an object: what an administrator decides for many objects. Pure.
//!
//! [`resolve`] alone decides which class an object has, and whether it may have this class. A
//! [`Class`] is what the steps of a reconciliation need of it.

mod merge;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::LocalObjectReference;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use muxtunnel_codes::Code;
use muxtunnel_crds::{
    Feature, ImagePullPolicy, MuxClass, NamespacesFrom, Permitted, Template, TemplateMetadata,
    Tuning,
};
use serde::{Deserialize, Serialize};

use crate::settings::Images;

/// The trust domain of SPIFFE IDs of a class without one.
const TRUST_DOMAIN: &str = "cluster.local";

/// Labels of a namespace.
pub type Labels = BTreeMap<String, String>;

/// Why an object has no class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoClass<E> {
    /// Another operator serves the object.
    Foreign,
    /// The condition Accepted reports the code and the sentence.
    Refused(Code, String),
    /// The classes, or the labels of the object's namespace that decide, are not known.
    NotKnown(E),
}

/// The class with the name `asked`, or the class of all objects without a name, if the operator
/// `controller` serves this class and the class permits the namespace with the labels `namespace`.
///
/// # Errors
/// [`NoClass`]. Defaults of all operators count, so that two operators never serve one object.
pub fn resolve<'a, E>(
    asked: Option<&str>,
    classes: &'a [Arc<MuxClass>],
    controller: &str,
    namespace: Result<&Labels, E>,
) -> Result<&'a MuxClass, NoClass<E>> {
    let class = match asked {
        Some(name) => named(name, classes)?,
        None => default(classes, controller)?,
    };
    if class.spec.controller_name != controller {
        return Err(NoClass::Foreign);
    }
    admit(class, namespace)?;
    Ok(class)
}

fn named<'a, E>(name: &str, classes: &'a [Arc<MuxClass>]) -> Result<&'a MuxClass, NoClass<E>> {
    let class = classes.iter().find(|class| class.name_any() == name);
    class.map(AsRef::as_ref).ok_or_else(|| {
        let detail = format!("no MuxClass {name} exists");
        NoClass::Refused(Code::ClassNotFound, detail)
    })
}

fn default<'a, E>(
    classes: &'a [Arc<MuxClass>],
    controller: &str,
) -> Result<&'a MuxClass, NoClass<E>> {
    let defaults = classes.iter().filter(|class| class.spec.default);
    let mut defaults: Vec<_> = defaults.map(AsRef::as_ref).collect();
    match &defaults[..] {
        [] => Err(NoClass::Refused(
            Code::ClassNotFound,
            "the object has no className, and no MuxClass has `default: true`".to_owned(),
        )),
        [class] => Ok(class),
        several
            if several
                .iter()
                .any(|one| one.spec.controller_name == controller) =>
        {
            defaults.sort_by_key(|class| class.name_any());
            let names: Vec<_> = defaults.iter().map(|class| class.name_any()).collect();
            let detail = format!(
                "the object has no className, and several MuxClasses have `default: true`: {}",
                names.join(", ")
            );
            Err(NoClass::Refused(Code::ClassAmbiguous, detail))
        }
        _ => Err(NoClass::Foreign),
    }
}

fn admit<E>(class: &MuxClass, namespace: Result<&Labels, E>) -> Result<(), NoClass<E>> {
    let asked = class.spec.namespaces.as_ref();
    let Some(asked) = asked.filter(|asked| asked.from == NamespacesFrom::Selector) else {
        return Ok(());
    };
    let refused = |why: &str| {
        let detail = format!("MuxClass {} {why}", class.name_any());
        NoClass::Refused(Code::ClassNotPermitted, detail)
    };
    let selector = asked.selector.clone().unwrap_or_default();
    let selector = Selector::try_from(selector)
        .map_err(|error| refused(&format!("has an invalid namespaces.selector: {error}")))?;
    let labels = namespace.map_err(NoClass::NotKnown)?;
    match selector.matches(labels) {
        true => Ok(()),
        false => Err(refused(
            "does not permit this namespace: its namespaces.selector does not match the namespace's labels",
        )),
    }
}

/// What the steps of a reconciliation need of a class.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// The name of the MuxClass.
    pub name: String,
    /// The part that pods have.
    pub part: ClassPart,
    permitted: Permitted,
    trust_domain: Option<String>,
}

/// The part of a class that pods have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClassPart {
    /// The images of pods.
    pub images: Images,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image_pull_policy: Option<ImagePullPolicy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    image_pull_secrets: Vec<LocalObjectReference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<Template>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tuning: Option<Tuning>,
}

impl Class {
    /// The class with another part. What the class permits does not change.
    pub fn with(self, part: ClassPart) -> Self {
        Self { part, ..self }
    }

    /// The class, with the images of the operator's own version (`own`) where it names none.
    pub fn of(class: &MuxClass, own: &Images) -> Self {
        let spec = class.spec.clone();
        let asked = spec.images.unwrap_or_default();
        let image = |asked: Option<String>, own: &String| asked.unwrap_or_else(|| own.clone());
        Self {
            name: class.name_any(),
            part: ClassPart {
                images: Images {
                    gateway: image(asked.gateway, &own.gateway),
                    wan: image(asked.wan, &own.wan),
                    bench: image(asked.bench, &own.bench),
                },
                image_pull_policy: spec.image_pull_policy,
                image_pull_secrets: spec.image_pull_secrets,
                template: spec.template,
                tuning: spec.tuning,
            },
            permitted: spec.permitted.unwrap_or_default(),
            trust_domain: spec.trust_domain,
        }
    }

    /// The pull policy of all images.
    pub fn pull_policy(&self) -> String {
        let policy = self.part.image_pull_policy.unwrap_or_default();
        policy.as_str().to_owned()
    }

    /// The trust domain in the SPIFFE IDs of certificates that cert-manager issues.
    pub fn trust_domain(&self) -> &str {
        self.trust_domain.as_deref().unwrap_or(TRUST_DOMAIN)
    }

    /// The kernel settings of an object that requests `own`.
    pub fn tuning<'a>(&'a self, own: Option<&'a Tuning>) -> Option<&'a Tuning> {
        own.or(self.part.tuning.as_ref())
    }

    /// The template of gateways: the template of the object over that of the class.
    pub fn template(&self, own: &Template) -> Template {
        let class = self.part.template.clone().unwrap_or_default();
        let mut merged = self.common(own);
        if let Some(spec) = &mut merged.spec {
            let below = class.spec.map(|spec| spec.containers);
            spec.containers = merge::containers(below.unwrap_or_default(), &spec.containers);
        }
        merged
    }

    /// The template `own` over that of the class, whose containers do not count.
    pub fn common<C: Clone + Default>(&self, own: &Template<C>) -> Template<C> {
        let class = self.part.template.clone().unwrap_or_default();
        let mut merged = merge::template(class, own);
        let spec = merged.spec.get_or_insert_default();
        spec.image_pull_secrets = self.pull_secrets(std::mem::take(&mut spec.image_pull_secrets));
        merged
    }

    /// The Secrets for images: those of the class, and `others`.
    pub fn pull_secrets(&self, others: Vec<LocalObjectReference>) -> Vec<LocalObjectReference> {
        merge::by_key(self.part.image_pull_secrets.clone(), &others, |one| {
            one.name.clone()
        })
    }

    /// Why the object may not have `field`, which needs `feature`.
    pub fn refusal(&self, feature: Feature, field: &str) -> Option<String> {
        let word = feature.as_str();
        let sentence = || {
            format!(
                "{field} needs the feature {word}, which permitted.features of MuxClass {} does not have",
                self.name
            )
        };
        (!self.permitted.features.contains(&feature)).then(sentence)
    }

    /// Labels make pods endpoints of Services. Labels and annotations can make other controllers
    /// add images, volumes and networks to pods. So templates of objects may only have permitted
    /// keys. The first other key of `metadata`, as a sentence.
    pub fn refused_key(&self, metadata: &TemplateMetadata) -> Option<String> {
        let patterns = &self.permitted.pod_metadata_keys;
        let is_refused = |key: &&String| !patterns.iter().any(|pattern| matches(pattern, key));
        let label = metadata.labels.keys().find(is_refused);
        let annotation = metadata.annotations.keys().find(is_refused);
        let label = label.map(|key| ("labels", key));
        let (field, key) = label.or(annotation.map(|key| ("annotations", key)))?;
        Some(format!(
            "template.metadata.{field} {key}: permitted.podMetadataKeys of MuxClass {} does not have this key",
            self.name
        ))
    }

    /// Why a certificate may not come from the CSI driver `driver`. Drivers have other rights than the
    /// object's author.
    #[must_use]
    pub fn refused_driver(&self, driver: &str) -> Option<String> {
        let drivers = &self.permitted.csi_drivers;
        let sentence = || {
            format!(
                "security.certificates: csi.driver {driver}: permitted.csiDrivers of MuxClass {} does not have this driver",
                self.name
            )
        };
        (!drivers.iter().any(|known| known == driver)).then(sentence)
    }
}

/// Whether `key` is the key `pattern`, or has its prefix `PREFIX/*`.
fn matches(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix("/*") {
        Some(prefix) => key.split_once('/').is_some_and(|(own, _)| own == prefix),
        None => pattern == key,
    }
}

#[cfg(test)]
mod tests;
