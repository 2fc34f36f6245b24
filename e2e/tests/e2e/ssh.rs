//! Users log in at a MuxExit (`spec.ssh`) with OpenSSH's ssh. The ssh program runs on
//! this machine, and reaches the exit through `kubectl port-forward`.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use muxtunnel_crds::MuxExit;
use muxtunnel_e2e::pods::{self, Serve};
use muxtunnel_e2e::{PodSecurity, TestNamespace, keys, tools, tunnel, turn, wait, with_temp_ns};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::examples::example;

/// Time-out of a program.
const WITHIN: Duration = Duration::from_secs(60);
/// Number of bytes to send.
const BYTES: usize = 1_000_000;

/// The keys `host`, `user` and `stranger` in a folder of the test. Only `user` may log in.
struct Keys(tempfile::TempDir);

impl Keys {
    async fn make() -> Result<Self> {
        let keys = Self(tempfile::tempdir()?);
        for name in ["host", "user", "stranger"] {
            let file = keys.at(name);
            let file = file.to_str().context("a path in UTF-8")?;
            let make = ["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file];
            tools::run("ssh-keygen", &make)
                .await
                .context("openssh-client is needed")?;
        }
        let host = format!("people {}", keys.text("host.pub")?);
        fs::write(keys.at("known_hosts"), host)?;
        Ok(keys)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.at(name)).with_context(|| name.to_owned())
    }

    /// Builds the ssh command that connects to `port` of this machine with a key, as in the
    /// example. The caller starts it. `more` contains additional arguments.
    fn ssh(&self, port: u16, key: &str, more: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-F", "/dev/null", "-p", &port.to_string(), "-i"]);
        command.arg(self.at(key));
        for option in [
            "IdentitiesOnly=yes",
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "HostKeyAlias=people",
            "ExitOnForwardFailure=yes",
            &format!("UserKnownHostsFile={}", self.at("known_hosts").display()),
        ] {
            command.args(["-o", option]);
        }
        command.args(more).arg("127.0.0.1");
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Asserts that this ssh command fails with the message `why`.
    async fn fails(&self, port: u16, key: &str, more: &[&str], why: &str) -> Result<()> {
        let mut ssh = self.ssh(port, key, more);
        let ended = timeout(WITHIN, ssh.output()).await;
        let Output { status, stderr, .. } =
            ended.with_context(|| format!("ssh {more:?} did not end in time"))??;
        let said = String::from_utf8_lossy(&stderr);
        ensure!(
            !status.success() && said.contains(why),
            "ssh {more:?} ended with {status}: {said}"
        );
        Ok(())
    }
}

/// A port of this machine that forwards to `port` of the Service while the returned program runs.
async fn port_forward(ns: &TestNamespace, service: &str, port: u16) -> Result<(Child, u16)> {
    let mut kubectl = Command::new("kubectl")
        .env("KUBECONFIG", ns.cluster.kubeconfig()?)
        .args([
            "--namespace",
            &ns.name,
            "port-forward",
            "--address=127.0.0.1",
        ])
        .args([&format!("service/{service}"), &format!(":{port}")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("kubectl")?;
    let said = kubectl.stdout.as_mut().context("the output of kubectl")?;
    let mut line = String::new();
    let mut said = BufReader::new(said);
    let read = timeout(WITHIN, said.read_line(&mut line)).await;
    read.context("kubectl prints nothing")??;
    // "Forwarding from 127.0.0.1:40123 -> 2222"
    let here = line
        .split_once("127.0.0.1:")
        .and_then(|(_, rest)| rest.split(' ').next());
    let here = here.and_then(|here| here.parse().ok());
    let here = here.with_context(|| format!("no port in {line:?}"))?;
    Ok((kubectl, here))
}

/// Sends bytes to a port of this machine, and compares the hash of the bytes with the server's
/// answer.
async fn send_hashed(port: u16, keys: &Keys) -> Result<()> {
    let bytes: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let file = keys.at("bytes");
    fs::write(&file, &bytes)?;
    let file = file.to_str().context("a path in UTF-8")?;
    let sent = tools::run("sha256sum", &[file]).await?;
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).await?;
    tcp.write_all(&bytes).await?;
    tcp.shutdown().await?;
    let mut came = String::new();
    tcp.read_to_string(&mut came).await?;
    let hash = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    ensure!(hash(&came) == hash(&sent), "sent {sent}, received {came:?}");
    Ok(())
}

#[tokio::test]
async fn people_who_have_only_ssh_reach_what_the_exit_may_dial_and_nothing_else() -> Result<()> {
    let _turn = turn::beside().await?;
    with_temp_ns("ssh", PodSecurity::Restricted, async |ns| {
        let files = Keys::make().await?;
        let secret = [
            ("ssh_host_ed25519_key", files.text("host")?),
            ("authorized_keys", files.text("user.pub")?),
        ];
        keys::secret(ns, "people-ssh", &secret).await?;
        pods::serve(ns, "web", Serve::Hash).await?;
        let exit: MuxExit = tunnel::up_of(ns, &example("muxtunnel-ssh.yaml")?).await?;
        let endpoint = exit.status.and_then(|status| status.ssh_endpoint);
        let endpoint = endpoint.context("an endpoint")?;
        let address = format!("{}:{}", endpoint.host, endpoint.port);
        ensure!(
            address == format!("people-exit-ssh.{}.svc:2222", ns.name),
            "{address}"
        );
        let shown = tools::muxtunnel(&["status", "exit/people", "-n", &ns.name]).await?;
        ensure!(
            shown.out.contains("\nssh ") && shown.out.contains(&address),
            "{shown:?}"
        );

        let (_kubectl, port) = port_forward(ns, "people-exit-ssh", 2222).await?;
        let free = TcpListener::bind("127.0.0.1:0").await?;
        let here = free.local_addr()?.port();
        drop(free);
        let forward = format!("127.0.0.1:{here}:web:80");
        let mut ssh = files.ssh(port, "user", &["-N", "-L", &forward]).spawn()?;
        wait::until("ssh listens", WITHIN, async || {
            if let Some(status) = ssh.try_wait()? {
                anyhow::bail!("ssh ended with {status}");
            }
            let listens = fs::read_to_string("/proc/net/tcp")?;
            let line = format!("0100007F:{here:04X} 00000000:0000 0A ");
            Ok(listens.contains(&line).then_some(()))
        })
        .await?;
        send_hashed(here, &files).await?;

        let prohibited = "administratively prohibited";
        for denied in ["web:81", "kubernetes.default.svc:443"] {
            files
                .fails(port, "user", &["-W", denied], prohibited)
                .await?;
        }
        let listen = ["-N", "-R", "*:8080:127.0.0.1:1"];
        files
            .fails(port, "user", &listen, "remote port forwarding failed")
            .await?;
        files
            .fails(port, "user", &[], "only forwards connections")
            .await?;
        files
            .fails(port, "stranger", &["-N"], "Permission denied (publickey)")
            .await
    })
    .await
}
