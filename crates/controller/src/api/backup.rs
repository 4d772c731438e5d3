//! `GET /system/backup`: the database and the deployed folders as a tar file, sent as it is read.

use std::io::{self, Write};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, header};
use nearpath_types::policy::WARNING_HEADER;
use tokio::sync::mpsc;

use super::api_error::ApiError;
use crate::backup::archive::{ArchivedFolder, write_archive};
use crate::controller::Controller;
use crate::fleet::HeldFolders;
use crate::model::ControllerModel;

/// Bytes per piece of the body.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that wait for the client.
const WAITING_PIECES: usize = 4;

pub(crate) async fn stream_backup(State(it): State<Controller>) -> Result<Response, ApiError> {
    // Before the copy: a folder that an update replaces in between is still there.
    let held = it.inner.fleet.hold_folders();
    let copy = it.copy_database().await?;
    // A slow client must not keep the store open.
    drop(it);
    let (folders, warnings) = collect_folders(held.as_ref(), &copy.model).await;
    let (sender, mut pieces) = mpsc::channel(WAITING_PIECES);
    tokio::task::spawn_blocking(move || {
        let mut out = io::BufWriter::with_capacity(PIECE_BYTES, PieceWriter(sender.clone()));
        if let Err(error) = write_archive(&mut out, copy.file, &folders) {
            tracing::warn!(%error, "backup: ended early");
            // Without an error the body would end as a whole one does.
            let _ = sender.blocking_send(Err(error));
        }
        drop(held);
    });
    let body = Body::from_stream(stream::poll_fn(move |context| pieces.poll_recv(context)));
    let head = [
        (header::CONTENT_TYPE, "application/x-tar"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"nearpath-backup.tar\"",
        ),
    ];
    Ok((head, warnings, body).into_response())
}

/// Returns the folders of all functions, and a warning for each that cannot be read.
async fn collect_folders(
    held: &dyn HeldFolders,
    model: &Arc<ControllerModel>,
) -> (Vec<ArchivedFolder>, HeaderMap) {
    let (mut folders, mut warnings) = (Vec::new(), HeaderMap::new());
    for (id, function) in &model.functions {
        let revision = function.revision;
        let image = function.spec.image.clone();
        match held.revision_folder(id.clone(), revision, image).await {
            Ok(path) => folders.push(ArchivedFolder {
                name: format!("{id}/{revision}").into(),
                path,
            }),
            Err(error) => {
                let text = format!("{id} is in the backup without its folder: {error}");
                tracing::warn!("backup: {text}");
                if let Ok(value) = HeaderValue::try_from(text) {
                    warnings.append(WARNING_HEADER, value);
                }
            }
        }
    }
    (folders, warnings)
}

/// Sends what is written; fails when the client has gone.
struct PieceWriter(mpsc::Sender<io::Result<Bytes>>);

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client has gone");
        self.0
            .blocking_send(Ok(Bytes::copy_from_slice(bytes)))
            .map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
