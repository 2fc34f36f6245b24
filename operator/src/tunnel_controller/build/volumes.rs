//! The volumes of a gateway's pod: the configuration, keys and certificates, users, files for ssh and
//! the TUN driver's node.

use k8s_openapi::api::core::v1::{CSIVolumeSource, Volume, VolumeMount};
use muxtunnel_contract::secrets;
use muxtunnel_crds::CsiSource;

use super::{End, config, network};
use crate::pods;
use crate::tunnel_controller::config_file::FILE;
use crate::tunnel_controller::validate::{
    CertificateVolume, USERS_FOLDER, UsersFile, ValidatedGateway, ValidatedObject,
    ValidatedSecurity,
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
    let item = pods::file(&key, FILE);
    let config = pods::config_map_volume(CONFIG_VOLUME, object.child(end), Some(item));
    let ssh = gateway.ssh.as_ref();
    let ssh = ssh.map(|ssh| pods::secret_volume(SSH_VOLUME, ssh.secret_ref.name.clone()));
    let network = object.network.as_ref().map(|_| network::volume());
    let volumes = [
        (Some(config), CONFIG_FOLDER),
        (keys_volume(&gateway.security, end), config::KEYS_FOLDER),
        (users_volume(object, end), USERS_FOLDER),
        (ssh, config::SSH_FOLDER),
        (network, network::FOLDER),
    ];
    let volumes = volumes.into_iter();
    let mounted = volumes.filter_map(|(volume, folder)| {
        let volume = volume?;
        let mount = pods::read_only(&volume.name, folder);
        Some((volume, mount))
    });
    mounted.collect()
}

/// The volume with keys and certificates. Each pod gets its own private key, and no other end's. A
/// Secret is mounted as a directory, so that its changes reach running gateways.
fn keys_volume(security: &ValidatedSecurity, end: End) -> Option<Volume> {
    Some(match security {
        ValidatedSecurity::None => return None,
        ValidatedSecurity::Certificates { volume, .. } => match volume {
            CertificateVolume::Secret(secret) => pods::secret_volume(KEYS_VOLUME, secret.clone()),
            CertificateVolume::Csi(csi) => csi_volume(csi),
        },
        ValidatedSecurity::Pair { secret } => {
            let (own, other) = match end {
                End::Exit => (secrets::EXIT_KEY, secrets::ENTRY_PUBLIC_KEY),
                End::Entry | End::Rendezvous => (secrets::ENTRY_KEY, secrets::EXIT_PUBLIC_KEY),
            };
            let mut volume = pods::secret_volume(KEYS_VOLUME, secret.clone());
            if let Some(source) = &mut volume.secret {
                source.items = Some(vec![
                    pods::file(own, config::PRIVATE_KEY_FILE),
                    pods::file(other, config::PEERS_FILE),
                ]);
            }
            volume
        }
        ValidatedSecurity::PublicKeys { secrets: own } => {
            let files = own.iter();
            let files =
                files.map(|secret| (secret.clone(), pods::file(secrets::PRIVATE_KEY, secret)));
            pods::secrets_volume(KEYS_VOLUME, files)
        }
    })
}

/// The volume of a CSI driver. The operator names no Secret for the driver, so the driver gets only
/// what it may read itself.
fn csi_volume(csi: &CsiSource) -> Volume {
    let attributes = &csi.attributes;
    Volume {
        name: KEYS_VOLUME.to_owned(),
        csi: Some(CSIVolumeSource {
            driver: csi.driver.clone(),
            read_only: Some(true),
            volume_attributes: (!attributes.is_empty()).then(|| attributes.clone()),
            ..CSIVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The volume with the users of an entry's forwards. The users may be in several Secrets. Each
/// Secret has its own directory.
fn users_volume(object: &ValidatedObject, end: End) -> Option<Volume> {
    let users: Vec<_> = object.users(end).collect();
    let file = |users: &UsersFile| {
        let file = pods::file(&users.key, &users.path());
        (users.secret.clone(), file)
    };
    (!users.is_empty()).then(|| pods::secrets_volume(USERS_VOLUME, users.into_iter().map(file)))
}
