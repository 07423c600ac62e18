"""The ways out of a store and into it: export, import, and a folder that is kept in step.

All of it happens through the methods of a door, as whoever asks there: an export has what the asker sees, an import
makes what the asker may make. Formats (``formats``) read and write one kind of record and know nothing of doors.
"""
