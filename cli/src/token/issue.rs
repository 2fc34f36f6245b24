//! `token issue`: writes the bundle of the exit's operator as a manifest that only its owner can
//! read.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::Api;

use super::bundle::Bundle;
use crate::args::{ClusterArgs, IssueArgs};
use crate::cluster::{self, Cluster, failed};
use crate::end::{Ended, Failure};
use crate::object::{self, Tunnel};
use crate::output::{self, Terminal};
use crate::time::distance;

/// Only the owner of the file may read the key in it.
const MODE: u32 = 0o600;
/// The condition that states why there is no bundle.
const CERTIFICATES_VALID: &str = "CertificatesValid";

pub(crate) async fn run(
    args: &IssueArgs,
    to: &ClusterArgs,
    program: &str,
    terminal: &Terminal,
) -> Result<Ended, Failure> {
    if args.filename.is_none() && terminal.stdout {
        let message = "a join bundle has a private key, which is not shown on a terminal; \
                       give --filename FILE, or send standard output to a file or a program";
        return Err(Failure::Usage(message.to_owned()));
    }
    let cluster = cluster::connect(to).await?;
    let tunnel = super::exit(&cluster, &args.name).await?;
    let bundle = published(&cluster, &tunnel, &args.name).await?;
    let name = format!("{}-join", args.name);
    let manifest =
        serde_yaml::to_string(&bundle.manifest(&name, None)).map_err(anyhow::Error::from)?;
    let file = match &args.filename {
        Some(path) => {
            write_new(path, &manifest)?;
            path.display().to_string()
        }
        None => {
            output::write(&manifest)?;
            "-".to_owned()
        }
    };
    eprint!("{}", told(&bundle, program, &file, &name, Timestamp::now()));
    Ok(Ended::Good)
}

/// The bundle of a tunnel.
async fn published(cluster: &Cluster, tunnel: &Tunnel, name: &str) -> Result<Bundle, Failure> {
    let join = tunnel
        .status
        .as_ref()
        .and_then(|status| status.certificates.as_ref()?.join.as_ref());
    let Some(join) = join else {
        let why = object::condition(tunnel, CERTIFICATES_VALID).map_or_else(
            || "the operator publishes a bundle only if it issues the certificates (carrier.security of mode MutualTls, \
                without your own Secrets)".to_owned(),
            |condition| condition.message.clone(),
        );
        let namespace = &cluster.namespace;
        return Err(Failure::Failed(anyhow!(
            "{namespace}/{name} has no join bundle: {why}"
        )));
    };
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let what = format!(
        "the join bundle, Secret {} in namespace {}",
        join.secret_name, cluster.namespace
    );
    let secret = secrets
        .get(&join.secret_name)
        .await
        .map_err(|error| failed(&format!("cannot read {what}"), error))?;
    let bundle =
        Bundle::new(secret, Timestamp::now()).with_context(|| format!("{what} is not valid"))?;
    Ok(bundle)
}

/// Creates a new file, because another process may have an existing file open.
fn write_new(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path)
        .with_context(|| format!("cannot create the new file {}", path.display()))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// A description of the bundle, and the next command. The text goes to standard error, because it
/// is for people.
fn told(bundle: &Bundle, program: &str, file: &str, name: &str, now: Timestamp) -> String {
    let source = match file {
        "-" => String::new(),
        file => format!("Written to {file}, which only you may read.\n"),
    };
    let warning = match bundle.address.as_deref() {
        Some(address) if is_of_a_cluster(address) => format!(
            "Warning: {address} resolves only in the exit's cluster. For entries in other clusters, set \
             carrier.address or exit.service.type in the MuxTunnel of the exit, and issue the bundle again. Or set \
             carrier.address in the MuxTunnel of the entry.\n"
        ),
        _ => String::new(),
    };
    format!(
        "{source}{warning}\
         Exit:         {} at {}\n\
         Fingerprint:  {}\n\
         Expires:      {} ({})\n\
         Every holder of the bundle can join the tunnel until the bundle expires. Run in the entry's cluster:\n\n    \
         {program} token redeem {} --name {name} -n NAMESPACE --context CONTEXT\n",
        bundle.exit,
        bundle.address.as_deref().unwrap_or("a rendezvous"),
        bundle.fingerprint,
        bundle.expires,
        distance(bundle.expires, now),
        quoted(file),
    )
}

/// Whether the host of an address is the cluster-internal name of a Service.
fn is_of_a_cluster(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.ends_with(".svc")
}

/// A file name, quoted for a shell.
fn quoted(file: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+,@%".contains(&byte);
    if file.bytes().all(plain) {
        file.to_owned()
    } else {
        format!("'{}'", file.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_key_is_not_shown_on_a_terminal() {
        let args = IssueArgs {
            name: "web".into(),
            filename: None,
        };
        let terminal = Terminal {
            stdout: true,
            ..Terminal::default()
        };
        let refused = run(&args, &ClusterArgs::default(), "muxtunnel", &terminal).await;
        assert!(matches!(refused, Err(Failure::Usage(_))), "{refused:?}");
    }

    #[test]
    fn a_file_is_new_and_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("join.yaml");
        write_new(&path, "text").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = write_new(&path, "other").unwrap_err();
        assert!(
            format!("{error:#}").starts_with("cannot create the new file"),
            "{error:#}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (
            folder.path().join("join.yaml"),
            folder.path().join("elsewhere"),
        );
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(write_new(&path, "text").is_err());
        assert!(!elsewhere.exists());
    }

    #[test]
    fn the_name_of_a_service_is_known_in_its_cluster_alone() {
        assert!(is_of_a_cluster("web-exit.backend.svc:64000"));
        for address in [
            "exit.example.com:64000",
            "192.0.2.1:30123",
            "[2001:db8::1]:64000",
        ] {
            assert!(!is_of_a_cluster(address), "{address}");
        }
    }

    #[test]
    fn names_of_files_can_be_pasted() {
        for name in ["web.join.yaml", "/tmp/a b.yaml", "it's.yaml", "$HOME"] {
            assert_eq!(shlex::split(&quoted(name)).unwrap(), [name]);
        }
    }
}
