//! `muxgate status`: requests the status document from the admin port of a running gateway, and
//! prints it.
//!
//! The command reads `/status` and changes nothing. [`text`] formats the document for people.

mod text;

use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use muxtunnel_contract::ports;
use muxtunnel_gateway_config::status;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum time for the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a status document, in bytes. A document with 1,024 carriers of 1 KiB each and 64
/// forwards has only a fraction of this size.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Arguments of `muxgate status`.
#[derive(Debug, Args)]
pub(super) struct Status {
    /// The admin port of the gateway: its flag --admin, or the field admin of its file.
    #[arg(long, value_name = "ADDR:PORT", default_value_t = format!("127.0.0.1:{}", ports::ADMIN))]
    admin: String,
    /// Format of the output.
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    output: FormatArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatArg {
    /// A summary and tables, for people.
    Table,
    /// The document of /status, for programs.
    Json,
}

impl Status {
    /// The status of the gateway as text.
    ///
    /// # Errors
    /// No gateway answers at the address within [`TIMEOUT`], or the answer is not a gateway's
    /// status document.
    pub(super) fn run(self) -> anyhow::Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let answer = runtime.block_on(async { timeout(TIMEOUT, fetch(&self.admin)).await });
        let body = answer.unwrap_or_else(|_| {
            Err(anyhow!(
                "{} has not answered within {} s\n  fix: check that the process is alive, and that the address is the \
                 admin port of a muxgate",
                self.admin,
                TIMEOUT.as_secs()
            ))
        })?;
        let other = |error: serde_json::Error| not_a_gateway(&self.admin, &error.into());
        let document: serde_json::Value = serde_json::from_slice(&body).map_err(other)?;
        match self.output {
            FormatArg::Json => Ok(serde_json::to_string_pretty(&document)?),
            FormatArg::Table => {
                let status: status::Status = serde_json::from_value(document).map_err(other)?;
                Ok(text::summary(&status))
            }
        }
    }
}

fn not_a_gateway(admin: &str, error: &anyhow::Error) -> anyhow::Error {
    anyhow!(
        "{admin} answers, but not as the admin port of a muxgate: {error:#}\n  fix: give the gateway's admin port with \
         --admin"
    )
}

/// The body of `GET /status`.
async fn fetch(admin: &str) -> anyhow::Result<Bytes> {
    let tcp = TcpStream::connect(admin).await.map_err(|error| {
        anyhow!(
            "no gateway answers at {admin}: {error}\n  fix: start the gateway with --admin {admin} (field admin of its \
             file), or give its admin port with --admin"
        )
    })?;
    let request = Request::get("/status")
        // The port serves addresses, and not every name.
        .header(header::HOST, tcp.peer_addr()?.to_string())
        .body(Empty::<Bytes>::new())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
    // The future owns the sender, so the sender is dropped after the response. A sender that is
    // still alive would keep the connection open, if the server does not close it.
    let response = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX);
        let body = body.collect().await.map_err(|error| anyhow!(error))?;
        if status != StatusCode::OK {
            bail!("/status returns {status}");
        }
        Ok(body.to_bytes())
    };
    // The connection transfers the bytes of the response. An error of the connection is also an
    // error of the response.
    let (response, _) = tokio::join!(response, connection);
    response.map_err(|error| not_a_gateway(admin, &error))
}
