/* Notes of an interrupted writer: a file of records, each with a key, data of the caller and a range of bytes of the asset's
 * file. The folder holds the notes and the file of the current writer, and those of the best interrupted one under other names.
 */
#ifndef ANE_FORMATS_AI_NOTES_H
#define ANE_FORMATS_AI_NOTES_H

#include "base/strmap.h"
#include "formats/aimodel/aimodel.h"

struct ai_notes {
  struct ane_folder_file file; /* of the current writer */
  struct ane_map old, bytes;   /* records of the interrupted writer, and its file; no data: there are none */
  struct ane_strmap known;     /* key -> offset of the record in `old` */
};

/* Sets the files of an earlier writer aside and opens new notes in the folder. Broken records, and what follows them, are
 * ignored. Errors: ANE_IO, ANE_NOMEM. */
ane_status ai_notes_begin(struct ai_notes *n, struct ane_folder_writer *folder, struct ane_error *err);
/* Appends a record: bytes [from, from + count) of the file, whose hash is given, belong to the key. The file holds them already.
 */
ane_status ai_notes_add(struct ai_notes *n, const char *key, size_t len, const void *data, size_t size, uint64_t from,
                        uint64_t count, uint64_t hash, struct ane_error *err);
/* As ane_aimodel_noted. */
bool ai_notes_find(const struct ai_notes *n, const char *key, size_t len, struct ane_aimodel_note *out);
/* Removes all files of notes from the folder, before its commit. */
ane_status ai_notes_remove(struct ai_notes *n, struct ane_folder_writer *folder, struct ane_error *err);
void ai_notes_close(struct ai_notes *n);

#endif
