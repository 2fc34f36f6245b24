//! The volumes of a gateway's pod: the configuration, keys and certificates, users, files for ssh and
//! the TUN driver's node.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, KeyToPath, ProjectedVolumeSource, SecretProjection, SecretVolumeSource,
    Volume, VolumeMount, VolumeProjection,
};
use muxtunnel_contract::secrets;

use super::{End, config, network};
use crate::pods;
use crate::tunnel_controller::config_file::FILE;
use crate::tunnel_controller::validate::{
    USERS_FOLDER, UsersFile, ValidatedGateway, ValidatedObject, ValidatedSecurity,
};

/// Mount point of the configuration.
pub(super) const CONFIG_FOLDER: &str = "/etc/muxgate";
const CONFIG_VOLUME: &str = "config";
const KEYS_VOLUME: &str = "keys";
const SSH_VOLUME: &str = "ssh";
const USERS_VOLUME: &str = "users";

/// The volumes of the gateway's container, with their mount points. `key` is the key of the gateway's
/// configuration in the end's ConfigMap.
pub(super) fn mounted(
    object: &ValidatedObject,
    end: End,
    gateway: &ValidatedGateway,
    key: String,
) -> Vec<(Volume, VolumeMount)> {
    let config = Volume {
        name: CONFIG_VOLUME.to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: object.child(end),
            items: Some(vec![KeyToPath {
                key,
                path: FILE.to_owned(),
                mode: None,
            }]),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let ssh = gateway.ssh.as_ref();
    let volumes = [
        (Some(config), CONFIG_FOLDER),
        (keys_volume(&gateway.security, end), config::KEYS_FOLDER),
        (users_volume(object, end), USERS_FOLDER),
        (
            ssh.map(|ssh| secret_volume(SSH_VOLUME, &ssh.secret_ref.name)),
            config::SSH_FOLDER,
        ),
        (
            object.network.as_ref().map(|_| network::volume()),
            network::FOLDER,
        ),
    ];
    let volumes = volumes.into_iter();
    let mounted = volumes.filter_map(|(volume, folder)| {
        let volume = volume?;
        let mount = pods::read_only(&volume.name, folder);
        Some((volume, mount))
    });
    mounted.collect()
}

/// The volume with keys and certificates. Each pod gets its own private key, and no other end's.
fn keys_volume(security: &ValidatedSecurity, end: End) -> Option<Volume> {
    let file = |key: &str, path: &str| KeyToPath {
        key: key.to_owned(),
        path: path.to_owned(),
        mode: None,
    };
    match security {
        ValidatedSecurity::None => None,
        ValidatedSecurity::Certificates { secret, .. } => Some(secret_volume(KEYS_VOLUME, secret)),
        ValidatedSecurity::Pair { secret } => {
            let (own, other) = match end {
                End::Exit => (secrets::EXIT_KEY, secrets::ENTRY_PUBLIC_KEY),
                End::Entry | End::Rendezvous => (secrets::ENTRY_KEY, secrets::EXIT_PUBLIC_KEY),
            };
            let mut volume = secret_volume(KEYS_VOLUME, secret);
            if let Some(source) = &mut volume.secret {
                source.items = Some(vec![
                    file(own, config::PRIVATE_KEY_FILE),
                    file(other, config::PEERS_FILE),
                ]);
            }
            Some(volume)
        }
        ValidatedSecurity::PublicKeys { secrets: own } => {
            let source = |secret: &String| VolumeProjection {
                secret: Some(SecretProjection {
                    name: secret.clone(),
                    items: Some(vec![file(secrets::PRIVATE_KEY, secret)]),
                    optional: None,
                }),
                ..VolumeProjection::default()
            };
            Some(Volume {
                name: KEYS_VOLUME.to_owned(),
                projected: Some(ProjectedVolumeSource {
                    default_mode: None,
                    sources: Some(own.iter().map(source).collect()),
                }),
                ..Volume::default()
            })
        }
    }
}

/// The Secret is mounted as a directory, so that its changes reach running gateways. As in the other
/// volumes, the files have the default mode: every user of the container can read them, because the
/// cluster may choose the user.
fn secret_volume(name: &str, secret: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The volume with the users of an entry's forwards. The users may be in several Secrets. Each
/// Secret has its own directory.
fn users_volume(object: &ValidatedObject, end: End) -> Option<Volume> {
    let users: Vec<_> = object.users(end).map(users_source).collect();
    (!users.is_empty()).then(|| Volume {
        name: USERS_VOLUME.to_owned(),
        projected: Some(ProjectedVolumeSource {
            default_mode: None,
            sources: Some(users),
        }),
        ..Volume::default()
    })
}

fn users_source(users: &UsersFile) -> VolumeProjection {
    VolumeProjection {
        secret: Some(SecretProjection {
            name: users.secret.clone(),
            items: Some(vec![KeyToPath {
                key: users.key.clone(),
                path: users.path(),
                mode: None,
            }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    }
}
